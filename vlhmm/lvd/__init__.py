"""Latent variable distillation (Liu et al. 2022): a teacher's vectors, clustered, give an HMM its first states."""

from vlhmm.lvd.assign import ClusterEvent, StateClusters, StateLabeller, find_states
from vlhmm.lvd.estimate import PathCounts, counts_to_logits
from vlhmm.lvd.joint import joint_log_prob
from vlhmm.lvd.kmeans import KMeansSettings, cluster_vectors
from vlhmm.lvd.settings import LVDSettings
from vlhmm.lvd.teachers import PretrainedTeacher, VectorTeacher, load_vector_teacher, vector_teacher
from vlhmm.lvd.training import Initialised, LVDEvent, initialise_by_lvd, lvd_training, portions, train_by_lvd
from vlhmm.lvd.vectors import BrokenTeacherError, VectorSettings, VectorsEvent, contextual_vectors

__all__ = [
    "BrokenTeacherError",
    "ClusterEvent",
    "Initialised",
    "KMeansSettings",
    "LVDEvent",
    "LVDSettings",
    "PathCounts",
    "PretrainedTeacher",
    "StateClusters",
    "StateLabeller",
    "VectorSettings",
    "VectorTeacher",
    "VectorsEvent",
    "cluster_vectors",
    "contextual_vectors",
    "counts_to_logits",
    "find_states",
    "initialise_by_lvd",
    "joint_log_prob",
    "load_vector_teacher",
    "lvd_training",
    "portions",
    "train_by_lvd",
    "vector_teacher",
]
