"""Latent variable distillation (Liu et al. 2022): a teacher's vectors, clustered, give an HMM its first states."""

from vlhmm.distillation.lvd.assign import ClusterEvent, StateClusters, StateLabeller, find_states
from vlhmm.distillation.lvd.estimate import PathCounts, count_states, counts_to_logits
from vlhmm.distillation.lvd.joint import joint_log_prob
from vlhmm.distillation.lvd.kmeans import KMeansSettings, cluster_vectors
from vlhmm.distillation.lvd.settings import LVDSettings
from vlhmm.distillation.lvd.teachers import PretrainedTeacher, VectorTeacher, load_vector_teacher, vector_teacher
from vlhmm.distillation.lvd.training import LVDEvent, LVDPlan, lvd_training, portions
from vlhmm.distillation.lvd.vectors import (
    BrokenTeacherError,
    VectorSample,
    VectorSettings,
    VectorsEvent,
    contextual_vectors,
    sample_vectors,
)

__all__ = [
    "BrokenTeacherError",
    "ClusterEvent",
    "KMeansSettings",
    "LVDEvent",
    "LVDPlan",
    "LVDSettings",
    "PathCounts",
    "PretrainedTeacher",
    "StateClusters",
    "StateLabeller",
    "VectorSample",
    "VectorSettings",
    "VectorTeacher",
    "VectorsEvent",
    "cluster_vectors",
    "contextual_vectors",
    "count_states",
    "counts_to_logits",
    "find_states",
    "joint_log_prob",
    "load_vector_teacher",
    "lvd_training",
    "portions",
    "sample_vectors",
    "vector_teacher",
]
