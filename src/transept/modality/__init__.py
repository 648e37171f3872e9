"""What backbones over text, pixels and waveforms each add to the common one."""
