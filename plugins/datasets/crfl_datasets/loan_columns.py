"""Columns of the loan table: names, texts and ranges, which no run computes from rows."""

from __future__ import annotations

FEATURE_NAMES = """
    loan_amnt funded_amnt funded_amnt_inv term int_rate installment grade sub_grade home_ownership annual_inc
    verification_status pymnt_plan purpose dti delinq_2yrs inq_last_6mths open_acc pub_rec revol_bal revol_util
    total_acc initial_list_status out_prncp out_prncp_inv total_pymnt total_pymnt_inv total_rec_prncp total_rec_int
    total_rec_late_fee recoveries collection_recovery_fee last_pymnt_amnt collections_12_mths_ex_med application_type
    acc_now_delinq tot_coll_amt tot_cur_bal open_acc_6m open_act_il open_il_12m open_il_24m mths_since_rcnt_il
    total_bal_il il_util open_rv_12m open_rv_24m max_bal_bc all_util total_rev_hi_lim inq_fi total_cu_tl inq_last_12m
    acc_open_past_24mths avg_cur_bal bc_open_to_buy bc_util chargeoff_within_12_mths delinq_amnt mo_sin_old_il_acct
    mo_sin_old_rev_tl_op mo_sin_rcnt_rev_tl_op mo_sin_rcnt_tl mort_acc mths_since_recent_bc mths_since_recent_inq
    num_accts_ever_120_pd num_actv_bc_tl num_actv_rev_tl num_bc_sats num_bc_tl num_il_tl num_op_rev_tl num_rev_accts
    num_rev_tl_bal_gt_0 num_sats num_tl_120dpd_2m num_tl_30dpd num_tl_90g_dpd_24m num_tl_op_past_12m pct_tl_nvr_dlq
    percent_bc_gt_75 pub_rec_bankruptcies tax_liens tot_hi_cred_lim total_bal_ex_mort total_bc_limit
    total_il_high_credit_limit hardship_flag disbursement_method debt_settlement_flag
"""
FEATURES = tuple(FEATURE_NAMES.split())
"""The 90 columns that the paper's preprocessing leaves, in the order of the published files."""

TEXTS: dict[str, tuple[str, ...]] = {
    "grade": tuple("ABCDEFG"),
    "sub_grade": tuple(f"{grade}{number}" for grade in "ABCDEFG" for number in range(1, 6)),
    "home_ownership": ("ANY", "MORTGAGE", "NONE", "OTHER", "OWN", "RENT"),
    "verification_status": ("Not Verified", "Source Verified", "Verified"),
    "pymnt_plan": ("n", "y"),
    "purpose": (
        "car",
        "credit_card",
        "debt_consolidation",
        "educational",
        "home_improvement",
        "house",
        "major_purchase",
        "medical",
        "moving",
        "other",
        "renewable_energy",
        "small_business",
        "vacation",
        "wedding",
    ),
    "initial_list_status": ("f", "w"),
    "application_type": ("DIRECT_PAY", "INDIVIDUAL", "Individual", "JOINT", "Joint App"),
    "hardship_flag": ("N", "Y"),
    "disbursement_method": ("Cash", "DirectPay"),
    "debt_settlement_flag": ("N", "Y"),
}
"""The columns of text, and what Lending Club writes there, sorted; a cell may also be empty."""

# Everything is at least 0. Round numbers, by what the columns mean and what loans usually have: Lending Club lends at
# most 40,000 dollars, for 60 months, at some 30 percent. What lies above is cut off; one rich debtor must not press
# all others together. They were set once, after a look at the quantiles of all rows, from which test rows are drawn,
# too. No run computes them, so no client moves them.
HIGHEST: dict[str, float] = {
    **{name: len(texts) for name, texts in TEXTS.items()},
    "loan_amnt": 40_000,
    "funded_amnt": 40_000,
    "funded_amnt_inv": 40_000,
    "term": 60,
    "int_rate": 30,
    "installment": 1500,
    "annual_inc": 250_000,
    "dti": 40,
    "delinq_2yrs": 5,
    "inq_last_6mths": 10,
    "open_acc": 40,
    "pub_rec": 5,
    "revol_bal": 100_000,
    "revol_util": 100,
    "total_acc": 80,
    "out_prncp": 40_000,
    "out_prncp_inv": 40_000,
    "total_pymnt": 50_000,
    "total_pymnt_inv": 50_000,
    "total_rec_prncp": 40_000,
    "total_rec_int": 20_000,
    "total_rec_late_fee": 100,
    "recoveries": 5000,
    "collection_recovery_fee": 1000,
    "last_pymnt_amnt": 20_000,
    "collections_12_mths_ex_med": 2,
    "acc_now_delinq": 2,
    "tot_coll_amt": 10_000,
    "tot_cur_bal": 500_000,
    "open_acc_6m": 5,
    "open_act_il": 10,
    "open_il_12m": 5,
    "open_il_24m": 5,
    "mths_since_rcnt_il": 100,
    "total_bal_il": 100_000,
    "il_util": 100,
    "open_rv_12m": 5,
    "open_rv_24m": 10,
    "max_bal_bc": 20_000,
    "all_util": 100,
    "total_rev_hi_lim": 100_000,
    "inq_fi": 5,
    "total_cu_tl": 10,
    "inq_last_12m": 10,
    "acc_open_past_24mths": 10,
    "avg_cur_bal": 50_000,
    "bc_open_to_buy": 50_000,
    "bc_util": 100,
    "chargeoff_within_12_mths": 2,
    "delinq_amnt": 10_000,
    "mo_sin_old_il_acct": 250,
    "mo_sin_old_rev_tl_op": 400,
    "mo_sin_rcnt_rev_tl_op": 50,
    "mo_sin_rcnt_tl": 50,
    "mort_acc": 10,
    "mths_since_recent_bc": 100,
    "mths_since_recent_inq": 24,
    "num_accts_ever_120_pd": 5,
    "num_actv_bc_tl": 10,
    "num_actv_rev_tl": 20,
    "num_bc_sats": 15,
    "num_bc_tl": 25,
    "num_il_tl": 30,
    "num_op_rev_tl": 25,
    "num_rev_accts": 40,
    "num_rev_tl_bal_gt_0": 20,
    "num_sats": 40,
    "num_tl_120dpd_2m": 1,
    "num_tl_30dpd": 2,
    "num_tl_90g_dpd_24m": 3,
    "num_tl_op_past_12m": 10,
    "pct_tl_nvr_dlq": 100,
    "percent_bc_gt_75": 100,
    "pub_rec_bankruptcies": 2,
    "tax_liens": 2,
    "tot_hi_cred_lim": 500_000,
    "total_bal_ex_mort": 200_000,
    "total_bc_limit": 100_000,
    "total_il_high_credit_limit": 200_000,
}
"""The highest value of every feature that is told from others, declared and public."""
