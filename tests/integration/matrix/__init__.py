"""The matrix of features and moves: a request has the tokens of one undisturbed worker, however it moves."""
