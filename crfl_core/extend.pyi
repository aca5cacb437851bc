"""The names for plugins, by kind; `extend.py` imports each of them when it is first used."""

# ruff: noqa: I001  # the order is that of the kinds

# Every plugin: its base, options that are plugins or paths, state and random numbers, hooks
from crfl_core.plugin_api.base import Plugin as Plugin
from crfl_core.records.table import Table as Table
from crfl_core.plugin_api.base import PluginField as PluginField
from crfl_core.plugin_api.base import ImportPath as ImportPath
from crfl_core.files.data_files import UserPath as UserPath
from crfl_core.records.round import State as State
from crfl_core.records.random_streams import Streams as Streams
from crfl_core.plugin_api.hookspecs import hookimpl as hookimpl
from crfl_core.plugin_loading.registry import Registry as Registry

# Errors and warnings
from crfl_core.errors import CrflError as CrflError
from crfl_core.errors import CrflWarning as CrflWarning
from crfl_core.errors import ConfigError as ConfigError
from crfl_core.errors import DataError as DataError
from crfl_core.errors import OptionError as OptionError
from crfl_core.errors import PluginError as PluginError
from crfl_core.errors import PluginFailure as PluginFailure
from crfl_core.errors import RunError as RunError

# Aggregators: stages and rules, and what a round hands them
from crfl_core.plugin_api.aggregator import Aggregator as Aggregator
from crfl_core.plugin_api.aggregator import LinearAggregator as LinearAggregator
from crfl_core.plugin_api.aggregator import WeightedRule as WeightedRule
from crfl_core.plugin_api.aggregator import Stage as Stage
from crfl_core.plugin_api.aggregator import FixedStage as FixedStage
from crfl_core.plugin_api.aggregator import CapStage as CapStage
from crfl_core.records.round import Round as Round
from crfl_core.records.round import RoundFacts as RoundFacts
from crfl_core.records.round import Clients as Clients
from crfl_core.records.round import ClientUpdates as ClientUpdates
from crfl_core.records.round import Layout as Layout
from crfl_core.records.round import Mixing as Mixing
from crfl_core.records.round import StageResult as StageResult
from crfl_core.records.round import RuleResult as RuleResult
from crfl_core.records.round import Weighting as Weighting
from crfl_core.plugin_api.server_view import ServerView as ServerView
from crfl_core.plugin_api.server_view import RootSamples as RootSamples

# Server optimisers
from crfl_core.plugin_api.server_optimiser import ServerOptimiser as ServerOptimiser
from crfl_core.plugin_api.server_optimiser import FixedRate as FixedRate
from crfl_core.records.round import OptimiserResult as OptimiserResult

# Attacks: what attackers change, see and did
from crfl_core.plugin_api.attack import Attack as Attack
from crfl_core.records.attacker_view import Knowledge as Knowledge
from crfl_core.records.attacker_view import AttackerView as AttackerView
from crfl_core.records.attacker_view import AttackerObservation as AttackerObservation
from crfl_core.records.inputs import Batches as Batches
from crfl_core.records.inputs import FederatedData as FederatedData
from crfl_core.plugin_api.attack import RealisedAttack as RealisedAttack

# Datasets and partitioners
from crfl_core.plugin_api.dataset import Dataset as Dataset
from crfl_core.plugin_api.dataset import SplitDataset as SplitDataset
from crfl_core.plugin_api.dataset import FileDataset as FileDataset
from crfl_core.records.inputs import Data as Data
from crfl_core.records.inputs import DataFacts as DataFacts
from crfl_core.records.inputs import Domain as Domain
from crfl_core.plugin_api.dataset import ScalingKind as ScalingKind
from crfl_core.files.data_files import DataSource as DataSource
from crfl_core.files.data_files import DataFile as DataFile
from crfl_core.files.data_files import cache_dir as cache_dir
from crfl_core.files.data_files import may_write_caches as may_write_caches
from crfl_core.plugin_api.partitioner import Partitioner as Partitioner
from crfl_core.records.inputs import remote_rows as remote_rows

# Models
from crfl_core.plugin_api.model import Model as Model
from crfl_core.plugin_api.model import BoundModel as BoundModel
from crfl_core.plugin_api.softmax_regression import LinearModel as LinearModel
from crfl_core.plugin_api.torch_module import ModuleModel as ModuleModel
from crfl_core.plugin_api.model import LocalModels as LocalModels
from crfl_core.records.ledger import ModelFacts as ModelFacts

# Feature maps
from crfl_core.plugin_api.feature_map import FeatureMap as FeatureMap
from crfl_core.plugin_api.feature_map import ImageMap as ImageMap
from crfl_core.plugin_api.feature_map import FittedMap as FittedMap
from crfl_core.plugin_api.feature_map import BoundMap as BoundMap

# Algorithms of local training
from crfl_core.plugin_api.local_algorithm import LocalAlgorithm as LocalAlgorithm
from crfl_core.plugin_api.local_algorithm import ProximalAlgorithm as ProximalAlgorithm
from crfl_core.plugin_api.local_algorithm import StatefulAlgorithm as StatefulAlgorithm
from crfl_core.plugin_api.local_algorithm import LocalRound as LocalRound
from crfl_core.plugin_api.local_algorithm import LocalStep as LocalStep
from crfl_core.plugin_api.local_algorithm import StepDirection as StepDirection

# Certificates: the interface, and the evidence that they read
from crfl_core.plugin_api.certificate import Certificate as Certificate
from crfl_core.plugin_api.certificate import Check as Check
from crfl_core.plugin_api.certificate import CollectiveGuarantee as CollectiveGuarantee
from crfl_core.plugin_api.certificate import Guarantee as Guarantee
from crfl_core.plugin_api.certificate import Level as Level
from crfl_core.plugin_api.certificate import ABSTAIN as ABSTAIN
from crfl_core.records.threat import Threat as Threat
from crfl_core.records.ledger import Ledger as Ledger
from crfl_core.records.ledger import RoundRecord as RoundRecord
from crfl_core.records.ledger import ClientRows as ClientRows
from crfl_core.records.ledger import GroupFacts as GroupFacts
from crfl_core.records.votes import VoteRequest as VoteRequest
from crfl_core.records.votes import VoteSettings as VoteSettings
from crfl_core.records.votes import Votes as Votes
from crfl_core.records.votes import LogitVotes as LogitVotes
from crfl_core.records.votes import CountVotes as CountVotes
from crfl_core.records.votes import ExactVotes as ExactVotes
from crfl_core.records.votes import GroupDistances as GroupDistances
from crfl_core.records.votes import GroupRankings as GroupRankings
from crfl_core.records.votes import GroupVotes as GroupVotes

# Certificates: the ground that those of crfl stand on
from crfl_core.certification import assumption_checks as assumption_checks
from crfl_core.certification import formulas as formulas
from crfl_core.certification.ball_rule_checks import spectrum_checks as spectrum_checks
from crfl_core.certification.confidence import margin_thresholds as margin_thresholds
from crfl_core.certification.confidence import smoothed_thresholds as smoothed_thresholds
from crfl_core.certification.confidence import vote_bounds as vote_bounds
from crfl_core.certification.confidence import vote_count_request as vote_count_request
from crfl_core.certification.contraction import bias_input as bias_input
from crfl_core.certification.contraction import input_bound as input_bound
from crfl_core.certification.contraction import smoothness as smoothness
from crfl_core.certification.direction_checks import check_breakdown_direction as check_breakdown_direction
from crfl_core.certification.direction_checks import forward_checks as forward_checks
from crfl_core.certification.direction_checks import pathwise_checks as pathwise_checks
from crfl_core.certification.drift import DriftBound as DriftBound
from crfl_core.certification.levels import DriftCosts as DriftCosts
from crfl_core.certification.levels import build_guarantee as build_guarantee

# Engines: the work of a run that other processes can do
from crfl_core.plugin_api.engine import Engine as Engine
from crfl_core.plugin_api.engine import Job as Job
from crfl_core.runs.run import open_job as open_job
from crfl_core.records.round import TrainingTask as TrainingTask
from crfl_core.records.round import LocalUpdates as LocalUpdates
from crfl_core.records.round import BatchMeasurements as BatchMeasurements
from crfl_core.records.vote_counting import CountingTask as CountingTask
from crfl_core.records.vote_counting import PartialCount as PartialCount
from crfl_core.records.vote_counting import NoisyModels as NoisyModels

# Trackers: what they are shown of a run
from crfl_core.plugin_api.tracker import Tracker as Tracker
from crfl_core.records.run_context import RunContext as RunContext
from crfl_core.plugin_api.certificate import CertificateResult as CertificateResult
from crfl_core.runs.results import RunResult as RunResult
from crfl_core.reporting.metrics import Curve as Curve
from crfl_reports.gallery import plot as plot

# Commands: arguments and output like those of crfl
from crfl_core.cli.arguments import ConfigArgument as ConfigArgument
from crfl_core.cli.arguments import SetOption as SetOption
from crfl_core.cli.arguments import RunArgument as RunArgument
from crfl_core.cli.arguments import TrustOption as TrustOption
from crfl_core.cli.arguments import QuietOption as QuietOption
from crfl_core.cli.arguments import JsonOption as JsonOption
from crfl_core.cli.output import progress as progress
from crfl_core.cli import passing as passing
from crfl_core.cli.output import terminal as terminal
