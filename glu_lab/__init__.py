"""glu_lab: a laboratory for Transformer MLPs.

Three ideas are kept apart throughout the package:

* a **Spec** says which function a model computes (`glu_lab.spec`);
* a **Layout** says how its tensors lie in a file;
* an **Execution** says how it is run, and never changes the function.
"""

__version__ = "0.1.0"
