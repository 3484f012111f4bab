_base_ = ['./laplacianformer-huge_8xb128_in1k.py', '../../_base_/strategies/fsdp.py']

custom_hooks = []  # averaged weights would be a whole copy of the model
