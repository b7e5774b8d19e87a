"""The teacher's pooled layers: computed once and cached, or computed while the student trains."""

from leap.teacher.cache import build_cache
from leap.teacher.choice import open_teacher, run_online
from leap.teacher.interface import Teacher, TeacherInput, TeacherTokens
from leap.teacher.online import OnlineTeacher, write_online

__all__ = [
    "OnlineTeacher",
    "Teacher", "TeacherInput", "TeacherTokens", "build_cache", "open_teacher", "run_online", "write_online",
]  # fmt: skip
