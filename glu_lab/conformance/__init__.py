"""Whether a layer computes the function that its Spec states, judged from outside of it."""
