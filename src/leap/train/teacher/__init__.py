"""The teacher's pooled layers: computed once and cached, or computed while the student trains."""

from leap.train.teacher.choice import open_teacher, run_online
from leap.train.teacher.interface import Teacher, TeacherInput, TeacherTokens
from leap.train.teacher.online import OnlineTeacher, write_online
from leap.train.teacher.teacher_cache import build_cache

__all__ = [
    "OnlineTeacher",
    "Teacher", "TeacherInput", "TeacherTokens", "build_cache", "open_teacher", "run_online", "write_online",
]  # fmt: skip
