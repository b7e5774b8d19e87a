"""Time, memory and disk of the pipeline on one NVIDIA L4: an estimate from the settings, no measurement."""

from typing import NamedTuple

from leap.core.settings import Settings, VariantSettings

# Peak of bfloat16 with dense matrices (NVIDIA's data sheet), and the shares of it that training reaches.
L4_FLOPS = 121e12
UTILISATION = (0.25, 0.5)
# Tokens of a sentence of the paper's sources on average, at most train.max_length.
TOKENS = 18
GIGA = 1e9


class Shape(NamedTuple):
    """A transformer's size: layers, width, width of the feed-forward layers, entries of the vocabulary."""

    layers: int
    width: int
    intermediate: int
    vocabulary: int = 30_522

    @property
    def matrices(self) -> int:
        """Count the parameters that every token is multiplied with."""
        return self.layers * (4 * self.width**2 + 2 * self.width * self.intermediate)

    @property
    def parameters(self) -> int:
        """Count all parameters, the table of embeddings included."""
        return self.matrices + self.vocabulary * self.width


class Estimate(NamedTuple):
    """Cost of training all students.

    students: trainings, one after the other.
    hours: of all of them, from and to.
    memory: gigabytes of the card.
    disk: gigabytes of students, the teacher's cache and what is downloaded; DVC's cache holds the models again.
    """

    students: int
    hours: tuple[float, float]
    memory: float
    disk: float


def estimate(settings: Settings, teacher: Shape, downloads: int = 0) -> Estimate | None:
    """Estimate time, memory and disk of `dvc repro` on an L4; null where the settings do not say how much text.

    A student's step is three times its forward pass, a teacher's one, 2 operations a parameter and token.
    `downloads` are the bytes that the hub has for the settings.
    """
    sentences = settings.data.max_sentences
    trained = [v for v in map(settings.variant, settings.variants) if v.checkpoint is None]
    if sentences is None or not trained:
        return None
    operations = memory = disk = 0.0
    for variant in trained:
        student = _student(variant, teacher)
        tokens = sentences * variant.train.epochs * min(TOKENS, variant.train.max_length)
        operations += tokens * (6 * student.matrices + 2 * teacher.matrices)
        memory = max(memory, _memory(variant, student, teacher))
        disk += 2 * 4 * student.parameters  # the student, and the model with its exit rule
    seeds = len(settings.seeds)
    hours = [seeds * operations / L4_FLOPS / share / 3600 for share in reversed(UTILISATION)]
    # Above 20 GB the teacher runs together with the student (train.teacher: auto).
    cache = 2 * sentences * teacher.layers * teacher.width
    cached = cache if settings.train.teacher == "cached" or cache <= 20 * GIGA else 0
    return Estimate(
        seeds * len(trained), (hours[0], hours[1]), memory / GIGA, (downloads + seeds * disk + cached) / GIGA
    )


def _student(variant: VariantSettings, teacher: Shape) -> Shape:
    chosen = variant.student
    return Shape(chosen.layers, chosen.width, chosen.intermediate, teacher.vocabulary)


def _memory(variant: VariantSettings, student: Shape, teacher: Shape) -> float:
    """Weights, gradients and Adam's moments in 32 bits, the teacher in 16, activations of the longest batch."""
    rows = variant.train.batch_size * variant.train.max_length
    activations = 2 * rows * student.layers * (16 * student.width + 2 * student.intermediate)
    return 16 * student.parameters + 2 * teacher.parameters + activations
