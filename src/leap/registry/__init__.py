"""MLflow as a view of the files: runs, registered versions with their aliases, cards, exports.

    synchronise(settings, Project())     # what the stage `promote` does, and `leap track`

The files of the project are the truth.
"""
