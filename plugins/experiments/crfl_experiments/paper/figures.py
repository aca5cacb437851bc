"""Figures of the paper: what each varies, and what the paper says of it, in its own words.

Numbers such as "within 10 %" stand for the paper's "much", "very" or "similar", and are ours. Sections are those of the
paper; figures are counted in the order in which they stand in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from crfl_experiments.paper.claims import ClaimTest, Exceeds, Ordered, SimilarSets, Steady, Within
from crfl_experiments.paper.readings import ACCURACY, AREA, COST, NOT_FALLING, RATES, REACH, REMAINS
from crfl_experiments.paper.sound_answers import SoundQuestion

FALLS = Ordered(REACH, rises=False)
RISES = Ordered(REACH)
NOISE = "Section 6.2, Effect of Training Time Noise"
ABILITY = "Section 6.2, Effect of Attacker Ability"
REMARK = "Section 5.1, remarks to Corollary 1"
NO_VALUES = "The paper prints no table of the varied values; those here are ours."


@dataclass(frozen=True)
class Claim:
    """Claim of the paper, its section, and the tests that it comes down to."""

    quotation: str
    section: str
    tests: tuple[ClaimTest, ...]


@dataclass(frozen=True)
class Figure:
    """Figure of the paper. `axis` is the key that is varied, `symbol` the paper's name for it.

    `sources` are the figures whose cells it reads if it has none of its own; `loose_round` is explained in `Reading`;
    `sound_question` is the same question, put to a sound certificate.
    """

    name: str
    title: str
    number: str
    datasets: tuple[str, ...]
    axis: str
    symbol: str
    claims: tuple[Claim, ...]
    sound_question: SoundQuestion
    notes: tuple[str, ...] = (NO_VALUES,)
    shows_rate: bool = False
    sources: tuple[str, ...] = ()
    loose_round: int | None = None


STRONGER = "the stronger the attack, the smaller radius can be certified"
SMALL = "the certified radius would be large when: [...] {} small"

FIGURES: tuple[Figure, ...] = (
    Figure(
        "sigma",
        "Training-time noise",
        "Figure 2",
        ("mnist", "loan", "emnist"),
        "server.noise_std",
        "sigma",
        (
            Claim(
                "when sigma is high, certified rate is high at every r and large radius can be certified",
                NOISE,
                (Ordered(RATES), RISES),
            ),
            Claim("large radius is certified but at a low accuracy", NOISE, (Ordered(ACCURACY, rises=False),)),
            Claim("the parameter smoothing with sigma_T does not hurt the accuracy much", NOISE, (Within(COST, 0.05),)),
        ),
        SoundQuestion("It trains without noise, so accuracy does not depend on sigma: one line."),
        shows_rate=True,
    ),
    Figure(
        "poison-ratio",
        "Poison ratio",
        "Figure 3",
        ("mnist", "loan"),
        "attack.poisoned_per_batch",
        "q",
        (Claim(STRONGER, ABILITY, (FALLS,)),),
        SoundQuestion("A client that may submit anything can poison any share: one line for every q."),
    ),
    Figure(
        "gamma",
        "Scale factor",
        "Figure 4, and 12(c) on MNIST",
        ("mnist", "loan", "emnist"),
        "attack.scale",
        "gamma",
        (Claim(STRONGER, ABILITY, (FALLS,)),),
        SoundQuestion("A client that may submit anything can use any scale: one line for every gamma."),
    ),
    Figure(
        "attackers",
        "Number of attackers",
        "Figure 5",
        ("mnist", "emnist"),
        "let.attackers",
        "R",
        (Claim(STRONGER, ABILITY, (FALLS,)),),
        SoundQuestion("A line for each R.", attackers=None),
    ),
    Figure(
        "rfa",
        "Number of attackers under RFA",
        "Figure 6",
        ("mnist", "emnist"),
        "let.attackers",
        "R",
        (
            Claim(
                "very large radius can be certified under RFA",
                "Section 6.2, Effect of Robust Aggregation",
                (Exceeds(REACH, "rfa", "fedavg", 10.0),),
            ),
        ),
        SoundQuestion(
            "The lines of Figure 5 once more, since weights that follow the updates have no sound answer on this axis: "
            "updates are capped and averaged with fixed weights.",
            attackers=None,
        ),
        (
            NO_VALUES,
            "The radius takes the weights that RFA gave in this run as fixed, as the paper does; an attacker who does "
            "less has more weight, so this is not a guarantee.",
        ),
    ),
    Figure(
        "clients",
        "Number of clients",
        "Figure 7",
        ("mnist", "loan"),
        "let.clients",
        "N",
        (
            Claim(
                "large radius can be certified when N is large [...], because it decreases the aggregation weights",
                "Section 6.2, Effect of Client Number",
                (RISES,),
            ),
        ),
        SoundQuestion("A line for each N.", "clients", "let.clients"),
        (NO_VALUES, "Local steps follow N, one epoch each, so both p and tau become smaller."),
    ),
    Figure(
        "rounds",
        "Rounds of training",
        "Figure 8, and 13(c) on MNIST",
        ("mnist", "loan", "emnist"),
        "rounds",
        "T",
        (
            Claim(
                "the certified accuracy is higher when T is larger",
                "Section 6.2, Effect of Training Rounds",
                (Ordered(ACCURACY), Ordered(AREA)),
            ),
            Claim(
                "the largest radius that can be certified for the test set does not increase",
                "Section 6.2, Effect of Training Rounds",
                (Steady(REACH, 0.01),),
            ),
        ),
        SoundQuestion("A line for each T.", "rounds", "rounds"),
    ),
    Figure(
        "tau",
        "Local steps",
        "no figure: a remark",
        ("mnist",),
        "training.steps",
        "tau",
        (Claim(SMALL.format("the local iteration tau_i is"), REMARK, (FALLS,)),),
        SoundQuestion("Its tau is 5, one of the settings that were chosen on the validation set: one line."),
    ),
    Figure(
        "eta",
        "Local learning rate",
        "no figure: a remark",
        ("mnist",),
        "training.learning_rate",
        "eta",
        (Claim(SMALL.format("the local learning rate eta_i"), REMARK, (FALLS,)),),
        SoundQuestion("Its eta is 60 on whitened features, chosen on the validation set: one line."),
    ),
    Figure(
        "rho",
        "Clipping norm",
        "no figure: a remark",
        ("mnist",),
        "server.clip_norm.start",
        "rho_0",
        (Claim(SMALL.format("rho_t is"), REMARK, (FALLS,)),),
        SoundQuestion("Its clipping norm is one that no model reaches, since weight decay keeps them short: one line."),
        (NO_VALUES, "rho_t = rho_0 + 0.1 t, as in Table 1, where rho_0 is 2."),
    ),
    Figure(
        "closeness",
        "Distance to the clean model",
        "Figure 9(a)",
        ("mnist",),
        "let.attacked",
        "t_adv",
        (
            Claim(
                "the plotted l2 distance over the FL training rounds after t_adv is decreasing",
                "Section 6.2, Empirical Evaluation on Model Closeness",
                (Within(NOT_FALLING, 0.05), Within(REMAINS, 0.9)),
            ),
        ),
        SoundQuestion(
            "Here it is a bound: no attack of one client in round t_adv moves the model further from its clean twin, "
            "whatever is submitted. The models have other features, and so another norm."
        ),
        ("Both runs have the same seeds, and so the same batches and noise.",),
    ),
    Figure(
        "models",
        "Number of noisy models",
        "Figure 11, left",
        ("mnist",),
        "votes.models",
        "M",
        (
            Claim(
                "larger number M of noisy models used for certification can result in larger certified radius",
                "Appendix A.2, Effect of Monte Carlo estimation",
                (RISES,),
            ),
        ),
        SoundQuestion("It needs no votes, and so no M: one line."),
    ),
    Figure(
        "alpha",
        "Error tolerance",
        "Figure 11, middle",
        ("mnist",),
        "votes.alpha",
        "alpha",
        (
            Claim(
                "the certified radius is smaller when the error tolerance alpha is smaller",
                "Appendix A.2, Effect of Monte Carlo estimation",
                (RISES,),
            ),
            Claim(
                "overall the certified accuracy is not very sensitive to alpha",
                "Appendix A.2, Effect of Monte Carlo estimation",
                (Steady(ACCURACY, 0.1),),
            ),
            Claim(
                "the certified radius is not very sensitive to alpha",
                "Section 6.2, Effect of Training Rounds",
                (Steady(REACH, 0.1),),
            ),
        ),
        SoundQuestion("It needs no votes, and so holds without an alpha: one line."),
    ),
    Figure(
        "timing",
        "Attack timing",
        "Figure 11, right",
        ("mnist",),
        "let.attacked",
        "t_adv",
        (
            Claim(
                "the certified radius is not sensitive to the attack timing t_adv",
                "Appendix A.2, Effect of Attack Timing",
                (Steady(REACH, 0.05), Steady(AREA, 0.1)),
            ),
        ),
        SoundQuestion(
            "A line for each t_adv, against two clients, at whatever scale. Later rounds have less time to forget.",
            "timing",
            "let.attacked",
            attackers=2,
        ),
        (
            "As in the paper, gamma = 100, R = 2, and all radii count with the loose L_Z of round 44; with that of the "
            "attacked round they shrink as rho grows.",
        ),
        loose_round=44,
    ),
    Figure(
        "backdoored",
        "Backdoored test sets",
        "Figures 12 and 13",
        ("mnist",),
        "",
        "",
        (
            Claim(
                "the results are similar to the results on the clean test set",
                "Appendix A.3, Experimental Results on Backdoored Test Set",
                (SimilarSets(),),
            ),
        ),
        SoundQuestion("One line, on the backdoored test samples of its own run."),
        ("Our backdoored set leaves out the target class, the authors' keeps it; so do the clean samples.",),
        sources=("attackers", "rfa", "gamma", "poison-ratio", "sigma", "clients", "rounds"),
    ),
)
"""All figures with runs, in the order of the paper. The study of Phi needs none: `phi`."""

DATASETS = ("mnist", "loan", "emnist")


def figures_with_cells(dataset: str) -> tuple[Figure, ...]:
    """Return the figures of a dataset that have cells of their own."""
    return tuple(figure for figure in FIGURES if dataset in figure.datasets and not figure.sources)
