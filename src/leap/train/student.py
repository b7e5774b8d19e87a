"""The student: its start, and how it is saved for Hugging Face, sentence-transformers and LeapEncoder."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from leap.core.checksums import write_sums
from leap.core.errors import UserError
from leap.core.one_thread import one_thread
from leap.core.settings.training import ColdStart, GrownStart, StudentSettings, TeacherStart
from leap.models.families import BERT
from leap.models.find import CHANGING
from leap.models.folder import SENTENCE_CONFIG, UnsupportedError
from leap.models.locate import locate
from leap.models.open_model import open_model
from leap.models.packed_encoder import Encoder, EncoderConfig
from leap.models.reference import ReferenceEncoder
from leap.models.saved_files import model_arguments, save_tokenizer, sentence_config
from leap.models.tokenizer import lowers_case

# Rows of BERT's table of positions.
BERT_POSITIONS = 512


def start_student(
    settings: StudentSettings, teacher_folder: Path, token_counts: Tensor, seed: int
) -> tuple[Encoder | ReferenceEncoder, Tensor | None]:
    """Make the untrained student.

    Args:
        settings: its shape and start.
        teacher_folder: the teacher, whose embeddings or layers a start may take over.
        token_counts: [V] occurrences of each token of the tokenizer in the training text.
        seed: of the random layers.

    Returns:
        The student, and the map back to the teacher's width where the start knows one, [D_t, D].

    Raises:
        UserError: the start does not fit the shape.
    """
    torch.manual_seed(seed)
    start = settings.start
    if isinstance(start, GrownStart):
        return _grown(settings, start, teacher_folder), None
    if isinstance(start, TeacherStart):
        return _taught(settings, start.frozen, teacher_folder), None
    if not isinstance(start, ColdStart):
        folder = locate(start).folder
        started = _check_fit(_load_packed(folder, settings.layers), settings, folder)
        started.pooling = "mean"  # LEAP's vectors are means, whatever the checkpoint was made for
        return started, None
    teacher = open_model(teacher_folder).encoder
    encoder = Encoder(_cold_shape(settings, teacher))
    encoder.apply(_random)
    basis = _take_embeddings(encoder, teacher, token_counts) if start.embeddings == "teacher" else None
    # Where words are narrower than the teacher's vectors, the map back is not the vectors' map.
    return encoder, basis if basis is not None and len(basis) == teacher.config.width else None


def student_tokenizer_folder(settings: StudentSettings, teacher_folder: Path) -> Path:
    """Return the folder whose tokenizer the student uses: the checkpoint's it starts from, else the teacher's."""
    start = settings.start
    return teacher_folder if isinstance(start, ColdStart | GrownStart | TeacherStart) else locate(start).folder


def save_student(
    encoder: Encoder | ReferenceEncoder,
    folder: Path,
    tokenizer_folder: Path,
    max_length: int,
    normalizes: bool = True,
) -> None:
    """Write the student as a sentence-transformers folder with its start's prompts.

    A packed student's vectors are of length 1 where it `normalizes`; one of another architecture keeps all modules
    of its teacher. `tokenizer_folder` is the model that its tokenizer and its prompts come from.
    """
    if not isinstance(encoder, Encoder):
        encoder.save(folder, max_length)
        write_sums(folder, CHANGING)
        return
    encoder.save(folder)
    tokenizer = open_model(tokenizer_folder).tokenizer.backend()
    save_tokenizer(tokenizer, tokenizer_folder, folder, max_length, encoder.config.pad_token)
    names = ("Transformer", "Pooling", *(["Normalize"] if normalizes else []))
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": "" if index == 0 else f"{index}_{name}",
            "type": f"sentence_transformers.models.{name}",
        }
        for index, name in enumerate(names)
    ]
    modes = {
        "pooling_mode_mean_tokens": encoder.pooling == "mean",
        "pooling_mode_cls_token": encoder.pooling == "cls",
    }
    pooling = {"word_embedding_dimension": encoder.config.width, **modes}
    (folder / "1_Pooling").mkdir()
    if normalizes:
        (folder / "2_Normalize").mkdir()
    for name, content in {
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {
            "max_seq_length": max_length,
            "do_lower_case": lowers_case(tokenizer_folder),
            **model_arguments(encoder.config.family),
        },
        SENTENCE_CONFIG: sentence_config(tokenizer_folder),
    }.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    write_sums(folder, CHANGING)


def _shape(settings: StudentSettings, teacher: EncoderConfig) -> EncoderConfig:
    _check_length(settings, teacher.max_tokens)
    return replace(
        teacher,
        layers=settings.layers,
        width=settings.width,
        heads=settings.heads,
        intermediate=settings.intermediate,
    )


def _check_length(settings: StudentSettings, longest: int) -> None:
    if settings.max_length > longest:
        raise UserError(
            f"student.max_length {settings.max_length} is above the teacher's {longest} positions: lower it"
        )


def _cold_shape(settings: StudentSettings, teacher: Encoder | ReferenceEncoder) -> EncoderConfig:
    """BERT's, whatever family the teacher is of, with the teacher's vocabulary.

    Nothing of the teacher's layers is taken over, and the packed training and the fastest exits compute BERT:
    MPNet's bias by relative position, say, would cost a student both.
    """
    if isinstance(teacher, Encoder):
        shape = _shape(settings, teacher.config)
        types = max(shape.token_types, 1)
        return replace(
            shape, family=BERT, positions=teacher.config.max_tokens, token_types=types, relative_buckets=0
        )
    longest = teacher.config.max_tokens
    _check_length(settings, longest)
    return EncoderConfig(
        layers=settings.layers,
        width=settings.width,
        heads=settings.heads,
        intermediate=settings.intermediate,
        vocabulary=teacher.config.vocabulary,
        positions=min(longest, max(settings.max_length, BERT_POSITIONS)),
        pad_token=teacher.config.pad_token,
    )


def _random(module: nn.Module) -> None:
    # BERT's own initialisation (Devlin et al. 2019; transformers' initializer_range).
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def _take_embeddings(encoder: Encoder, teacher: Encoder | ReferenceEncoder, token_counts: Tensor) -> Tensor:
    """Takes over the teacher's embeddings, in their main directions where the student is narrower."""
    weights = token_counts.double().add(0.1)
    words = teacher.word_vectors().double()
    if words.shape[1] < encoder.config.width:
        raise UserError(
            f"student.start takes over the teacher's word embeddings, which are {words.shape[1]} wide, less than "
            f"student.width {encoder.config.width}: set student.start.embeddings to random"
        )
    with one_thread():
        moments = (words * (weights / weights.sum()).unsqueeze(1)).T @ words
        basis: Tensor = torch.linalg.eigh(moments).eigenvectors.flip(1)[:, : encoder.config.width].float()
    # An eigenvector's sign is the library's whim; the largest entry made positive settles it.
    basis *= basis.gather(0, basis.abs().argmax(0, keepdim=True)).sign()
    with torch.no_grad():
        encoder.words.weight.copy_(teacher.word_vectors() @ basis)
        if not isinstance(teacher, Encoder):  # another architecture's positions are no table like BERT's
            return basis
        # A family may keep places for padding first.
        places = teacher.places.weight[teacher.config.first_position :] @ basis
        encoder.places.weight.copy_(places[: len(encoder.places.weight)])
        if encoder.types is not None and teacher.types is not None:
            encoder.types.weight.copy_(teacher.types.weight @ basis)
    return basis


def _grown(settings: StudentSettings, start: GrownStart, teacher_folder: Path) -> Encoder:
    teacher = _check_fit(_load_packed(teacher_folder), settings, teacher_folder)
    depth = teacher.config.layers
    if settings.layers % depth:
        raise UserError(f"student.start grows {settings.layers} layers from the teacher's {depth}: set a multiple")
    copies = settings.layers // depth
    stack = start.order == "stack"
    order = [number % depth if stack else number // copies for number in range(settings.layers)]
    encoder = Encoder(_shape(settings, teacher.config))
    state = {name: tensor for name, tensor in teacher.state_dict().items() if not name.startswith("layers.")}
    for number, source in enumerate(order):
        for name, tensor in teacher.layers[source].state_dict().items():
            state[f"layers.{number}.{name}"] = tensor
    encoder.load_state_dict(state)
    return encoder


def _taught(settings: StudentSettings, frozen: int, teacher_folder: Path) -> Encoder | ReferenceEncoder:
    teacher = open_model(teacher_folder).encoder
    if isinstance(teacher, Encoder):
        encoder = _check_fit(teacher, settings, teacher_folder)
        if frozen:
            encoder.requires_grad_(False)
            encoder.layers[frozen:].requires_grad_(True)
            encoder.layers[:frozen].requires_grad_(False)  # with them what they share: MPNet's bias by position
        return encoder
    if frozen:
        raise UserError(
            f"student.start.frozen: {frozen}, but only models of the BERT family keep layers as they are, not "
            f"{teacher_folder}: set it to 0"
        )
    for key in ("layers", "width"):
        own, wanted = getattr(teacher.config, key), getattr(settings, key)
        if own != wanted:
            raise UserError(f"student.{key} is {wanted}, but the teacher that it starts from has {own}: set that")
    _check_length(settings, teacher.config.max_tokens)
    return teacher.trainable()


def _load_packed(folder: Path, layers: int | None = None) -> Encoder:
    """Load a model whose layers are taken over one by one, which only the packed encoder's can be."""
    try:
        return Encoder.load(folder, layers)
    except UnsupportedError as error:
        raise UserError(
            f"student.start takes over single layers, of the BERT family only ({error}): start from "
            "{kind: teacher}, the whole teacher of whatever architecture, or {kind: cold}"
        ) from None


def _check_fit(encoder: Encoder, settings: StudentSettings, folder: Path) -> Encoder:
    shape = ("width", "heads", "intermediate")
    for key in ("layers", *shape) if isinstance(settings.start, TeacherStart) else shape:
        own, wanted = getattr(encoder.config, key), getattr(settings, key)
        if own != wanted:
            raise UserError(
                f"student.{key} is {wanted}, but the weights it starts from ({folder}) have {own}: set that"
            )
    return encoder
