// Empty on purpose: for targets that need a source file of their own.
