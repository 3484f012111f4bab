# From the run of mobilevitv2-150_2xb128-21kto1k-256px_in1k.
_base_ = './mobilevitv2-150_2xb64-384px_in1k.py'
