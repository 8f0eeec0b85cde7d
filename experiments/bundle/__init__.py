"""Making a trained model ready to be bundled: packed, calibrated, scored, with a card."""
