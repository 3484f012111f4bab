"""How a model computes: its attention, its layers' outputs, its operations, its time and memory."""
