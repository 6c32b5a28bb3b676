"""The errors of NVIDIA's bindings, as far as gpuguard meets them."""


class DCGMError(Exception):
    pass


class DCGMError_ConnectionNotValid(DCGMError):
    pass


class DCGMError_BadParam(DCGMError):
    pass


class DCGMError_ModuleNotLoaded(DCGMError):
    pass


class DCGMError_ProfilingMultiPassError(DCGMError):
    pass


class DCGMError_NotSupported(DCGMError):
    pass
