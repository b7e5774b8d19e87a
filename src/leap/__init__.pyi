from leap.exits.leap_encoder import LeapEncoder as LeapEncoder
from leap.exits.sentence_transformer import sentence_transformer as sentence_transformer
from leap.report.results import results as results
from leap.train.exit_loss import ExitLoss as ExitLoss

__version__: str
