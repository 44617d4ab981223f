"""Define the answers of the service, as types that the OpenAPI description is made from."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Candidate(BaseModel):
    """One class and its probability."""

    name: str
    probability: float = Field(description="calibrated, 0–1")


class PhotoAnswer(BaseModel):
    """The answer about one photo."""

    file: str = Field(description="name that the photo was sent with")
    classes: list[Candidate] = Field(default=[], description="most probable first")
    known: bool | None = Field(
        default=None,
        description="false for 'none of these', as for --unknown (5 %) of known photos; null: cannot tell",
    )
    novelty: float | None = Field(default=None, description="how foreign the photo is; larger is more foreign")
    p_value: float | None = Field(
        default=None, description="share of photos of known classes that are at least as foreign, 0–1"
    )
    answers: list[str] | None = Field(
        default=None, description="set of classes that holds the right one with a chance of --coverage (95 %)"
    )
    nearest: str | None = Field(default=None, description="name of the most similar kept photo of the first class")
    unreadable: str | None = Field(default=None, description="why the photo cannot be decoded")


class Classification(BaseModel):
    """Answers to one request; all from the same version unless a change was stored in between."""

    version: int
    photos: list[PhotoAnswer]


class ClassInfo(BaseModel):
    """One class that the model knows."""

    name: str
    photos: int = Field(description="number of photos it was learned from")
    kept: list[str] = Field(default=[], description="names of photos that are kept in the workspace")


class Unreadable(BaseModel):
    """A photo that was left out."""

    file: str
    reason: str


class Lesson(BaseModel):
    """The result of a lesson, or with ``dry_run`` what it would be."""

    version: int | None = Field(description="the new version; null for a dry run")
    learned: dict[str, int] = Field(description="photos learned of each class")
    unreadable: list[Unreadable] = []
    held_back_accuracy: float | None = Field(
        default=None, description="percent of a held-back fifth, scored before learned"
    )
    held_back_photos: int = 0
    old_accuracy_before: float | None = Field(
        default=None, description="percent of stored samples of the earlier classes"
    )
    old_accuracy_after: float | None = None
    seconds: float
    note: str | None = None


class Changed(BaseModel):
    """The version that is served after a change."""

    version: int
    says: str
    exact: bool | None = Field(
        default=None, description="of forget: whether the photos were taken out of the statistics"
    )


State = Literal["waiting", "at work", "done", "refused"]


class JobInfo(BaseModel):
    """A change that is asked for but not finished, or its end."""

    job: str
    what: str
    state: State
    place: int = Field(description="number of changes that come before this one")
    done: int = Field(description="photos learned so far")
    total: int | None = None
    status: int | None = Field(default=None, description="HTTP status that the change ended with")
    error: str | None = None
    lesson: Lesson | None = None
    changed: Changed | None = None


class VersionInfo(BaseModel):
    """One version of the model."""

    number: int
    parent: int | None
    what: str
    says: str
    when: str
    classes: int
    photos: int
    stored: bool
    scores: dict[str, float] = {}


class Versions(BaseModel):
    """All versions, newest first."""

    current: int
    can_undo: bool
    can_redo: bool
    versions: list[VersionInfo]


class Difference(BaseModel):
    """Photos of one class in two versions; null where the class is unknown."""

    name: str
    before: int | None
    after: int | None


class Forget(BaseModel):
    """A class to forget."""

    name: str = Field(min_length=1, max_length=1000)


class Rename(BaseModel):
    """A class, and its new name."""

    old: str = Field(min_length=1, max_length=1000)
    new: str = Field(min_length=1, max_length=1000)


class Group(BaseModel):
    """Photos that look alike."""

    files: list[str]
    positions: list[int] = Field(description="positions of the photos in the request")
    suggestion: str | None = Field(default=None, description="most probable class of the group")


class Groups(BaseModel):
    """Photos of a request, grouped by likeness, largest group first."""

    groups: list[Group]
    unreadable: list[Unreadable] = []


class Moment(BaseModel):
    """One step in the model's life."""

    what: str
    classes: int
    photos: int | None
    accuracy: float | None
    old_accuracy: float | None
    seconds: float | None
    energy_kwh: float | None
    energy_source: str | None


class Look(BaseModel):
    """The state of the model."""

    name: str
    version: int
    read_only: bool
    head: str
    backbone: str
    image_size: int
    classes: int
    photos: int
    state_mb: float = Field(description="numbers kept, in MB; without the frozen backbone")
    parts_mb: dict[str, float]
    history: list[Moment]
    confusion: list[list[float]] | None = Field(
        default=None, description="rows: class, columns: answer; percent of stored samples"
    )
    confusion_classes: list[str] = []
    stored_accuracy: float | None = Field(
        default=None, description="leave-one-out accuracy on stored samples, in percent"
    )


class Doubtful(BaseModel):
    """A kept photo whose label is doubtful."""

    file: str = Field(description="name of the kept photo")
    label: str
    looks_like: str
    own: float = Field(description="probability of its label, judged by all other photos, 0–1")


class CurvePoint(BaseModel):
    """Accuracy with so many photos of each class."""

    photos: int
    accuracy: float = Field(description="leave-one-out, in percent")


class Audit(BaseModel):
    """Doubtful labels among kept photos, and accuracy by number of photos."""

    photos: int = Field(description="kept photos that were judged")
    not_judged: list[str] = Field(description="classes of which one photo, or near-copies of one alone, are kept")
    doubtful: list[Doubtful] = Field(description="the most doubtful first")
    short: list[str] = Field(description="classes with less than half as many samples as the curve's last point")
    curve: list[CurvePoint] = Field(description="of the model's stored samples")
    with_twice_as_many: float | None = Field(description="accuracy in percent to expect with twice as many photos")


class Purge(BaseModel):
    """The photos and versions to delete for good."""

    photos: Literal["forgotten", "all"] = Field(
        default="forgotten",
        description="forgotten: kept photos that the served version did not learn; all: every kept photo",
    )


class Error(BaseModel):
    """Why a request was refused."""

    error: str = Field(description="one sentence")
