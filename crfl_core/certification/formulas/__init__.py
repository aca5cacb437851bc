"""The mathematics of certification: pure functions on NumPy arrays, float64, in log space where it matters.

From an attack to the drift of the final model: `shift` (one sample's gradient) -> `drift` (one round's aggregate) ->
`propagation`, `budget` or `hockey_stick` (the end of the run). From votes to the drift that a prediction tolerates:
`confidence` or `exact_votes` -> `rules`. `inversion` compares the two, and `rounding` bounds what floating-point
arithmetic adds. `paper` is the paper's own radius.

Against attackers in every round, or in unknown rounds: `group_vote` (votes of models from different clients),
`condorcet` (the same by pairs of classes), `collective` (a test set under one set of attackers),
`spectrum` and `ball` (smaller bounds for batches that honest clients scale) and `influence` (rates that give all
rounds the same influence).
"""

from crfl_core.certification.formulas._arrays import Array
from crfl_core.certification.formulas.backdoor import trigger_radius
from crfl_core.certification.formulas.ball import ball_gradient_bound, ball_room, ball_smoothness
from crfl_core.certification.formulas.budget import budget_per_unit_drift, tradeoff_budget
from crfl_core.certification.formulas.collective import (
    CollectiveCount,
    Leads,
    collective_count,
    plurality_leads,
)
from crfl_core.certification.formulas.condorcet import (
    CondorcetVote,
    class_ranks,
    condorcet_cost_radius,
    condorcet_leads,
    condorcet_radius,
    condorcet_shares,
    condorcet_vote,
)
from crfl_core.certification.formulas.confidence import (
    Bounds,
    clopper_pearson_lower,
    clopper_pearson_upper,
    hoeffding,
    one_stage,
    one_stage_bonferroni,
    two_stage,
)
from crfl_core.certification.formulas.drift import (
    attack_strength,
    byzantine_terms,
    effective_steps,
    fixed_attackers_drift,
    krum_drift,
    largest_rate,
    residual_bound,
    retention,
    scale_terms,
    update_bound,
    variable_attackers_drift,
    worst_poisoned_share,
    worst_totals,
)
from crfl_core.certification.formulas.exact_votes import ExactVotes, exact_votes
from crfl_core.certification.formulas.group_vote import (
    certified_groups,
    ensemble_count,
    group_costs,
    group_radius,
    membership_radius,
    vote_counts,
    weighted_group_radius,
)
from crfl_core.certification.formulas.hockey_stick import (
    hockey_stick_threshold,
    log_divergence,
    log_theta,
)
from crfl_core.certification.formulas.influence import (
    equal_influence_drift,
    equal_influence_rates,
    equal_influence_start,
    unknown_rounds_drift,
    worst_rounds,
)
from crfl_core.certification.formulas.inversion import client_count, feature_radius, sample_count, sample_ratio
from crfl_core.certification.formulas.paper import (
    attack_divergence,
    divergence_by_round,
    gradient_lipschitz,
    joint_log_radius,
    kl_budget,
    log_contraction,
    log_radius,
)
from crfl_core.certification.formulas.propagation import (
    averagedness,
    later_products,
    round_contraction,
    round_expansion,
    round_expansion_with_caps,
)
from crfl_core.certification.formulas.rounding import (
    SHORTEST_INPUT,
    Aggregation,
    LocalSteps,
    ModelSize,
    Rounding,
    gamma,
    local_rounding,
    logit_rounding,
    noisy_norm,
    round_rounding,
    rounding_budget,
    rounding_drift,
    server_rounding,
    weight_norm_bound,
)
from crfl_core.certification.formulas.rules import (
    gaussian_threshold,
    gaussian_threshold_of_logs,
    largest_attack,
    margin_threshold,
)
from crfl_core.certification.formulas.shift import (
    SampleChange,
    feature_shift,
    gradient_shift,
    gradient_shift_rate,
    input_bound_under_poison,
    label_shift,
    local_weight_norm,
    replacement_shift,
    saturating_shift,
)
from crfl_core.certification.formulas.spectrum import (
    batch_factor,
    batch_spectrum,
    factor_shift,
    spectrum_change,
    spectrum_gradient_bound,
    start_gradient,
)

__all__ = [
    "Array",
    # from gradients to drift
    "SampleChange",
    "feature_shift",
    "gradient_shift",
    "gradient_shift_rate",
    "label_shift",
    "local_weight_norm",
    "input_bound_under_poison",
    "replacement_shift",
    "saturating_shift",
    "attack_strength",
    "byzantine_terms",
    "variable_attackers_drift",
    "effective_steps",
    "largest_rate",
    "fixed_attackers_drift",
    "residual_bound",
    "retention",
    "scale_terms",
    "update_bound",
    "worst_poisoned_share",
    "worst_totals",
    "krum_drift",
    # batches that honest clients scale
    "ball_gradient_bound",
    "ball_room",
    "ball_smoothness",
    "batch_factor",
    "batch_spectrum",
    "factor_shift",
    "spectrum_change",
    "spectrum_gradient_bound",
    "start_gradient",
    # rounds that are not known
    "unknown_rounds_drift",
    "equal_influence_drift",
    "equal_influence_rates",
    "equal_influence_start",
    "worst_rounds",
    # from drift to the end of the run
    "averagedness",
    "round_expansion_with_caps",
    "later_products",
    "round_contraction",
    "round_expansion",
    "budget_per_unit_drift",
    "tradeoff_budget",
    "hockey_stick_threshold",
    "log_divergence",
    "log_theta",
    # what floating-point arithmetic adds
    "SHORTEST_INPUT",
    "Aggregation",
    "LocalSteps",
    "ModelSize",
    "Rounding",
    "weight_norm_bound",
    "gamma",
    "local_rounding",
    "logit_rounding",
    "noisy_norm",
    "round_rounding",
    "rounding_budget",
    "rounding_drift",
    "server_rounding",
    # from votes to thresholds
    "Bounds",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "hoeffding",
    "one_stage",
    "one_stage_bonferroni",
    "two_stage",
    "ExactVotes",
    "exact_votes",
    "largest_attack",
    "gaussian_threshold",
    "gaussian_threshold_of_logs",
    "margin_threshold",
    # votes of groups
    "group_radius",
    "membership_radius",
    "Leads",
    "plurality_leads",
    "CollectiveCount",
    "collective_count",
    "certified_groups",
    "weighted_group_radius",
    "ensemble_count",
    "group_costs",
    "vote_counts",
    "trigger_radius",
    # votes of groups by pairs of classes
    "class_ranks",
    "CondorcetVote",
    "condorcet_vote",
    "condorcet_shares",
    "condorcet_radius",
    "condorcet_cost_radius",
    "condorcet_leads",
    # the answers
    "client_count",
    "feature_radius",
    "sample_count",
    "sample_ratio",
    # the paper's radius
    "gradient_lipschitz",
    "attack_divergence",
    "joint_log_radius",
    "divergence_by_round",
    "kl_budget",
    "log_contraction",
    "log_radius",
]
