"""Trained models: their folders, saving and loading, and calibration."""
