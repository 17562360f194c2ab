"""A language model as teacher: how it is found, text that it writes a token a step, samples of it kept as a corpus."""

from vlhmm.distillation.teachers.decoding import Drawn
from vlhmm.distillation.teachers.drawing import TextDrawer, draw_texts
from vlhmm.distillation.teachers.model import Teacher, load_teacher, teacher_of

__all__ = ["Drawn", "Teacher", "TextDrawer", "draw_texts", "load_teacher", "teacher_of"]
