"""One judge of mathematical answers: read by a strict grammar, compared exactly, in processes that can be killed."""
