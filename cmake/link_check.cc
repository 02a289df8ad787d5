// Empty on purpose: the link check needs one source file of its own.
