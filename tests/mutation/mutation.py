"""What a seeded mutation is: one fault, planted by replacing one piece of text of one file."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One row of the table.

    Attributes:
        id: short name.
        area: what part of the product it spoils.
        file: path from the root of the repository.
        old: text that stands exactly once in the file.
        new: what is put in its place; the file stays valid Python.
        why: what a user would get if nobody noticed.
        tests: pytest files or node ids that should notice it. Those of `tests/eight_devices` get
            eight virtual devices; a row's tests are all of one kind.
        survives: why no test can notice it, for a row that is kept though none does.
    """

    id: str
    area: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def eight_devices(self) -> bool:
        """Whether its tests run with eight virtual devices."""
        return self.tests[0].startswith("tests/eight_devices/")

    def applied(self, text: str) -> str:
        """The file's text with the fault in it.

        Raises:
            ValueError: when the old text does not stand there exactly once.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(
                f"mutation {self.id!r}: the text that it replaces stands {found} times in "
                f"{self.file}, and must stand there once. Write the row anew: {self.old!r}."
            )
        return text.replace(self.old, self.new)
