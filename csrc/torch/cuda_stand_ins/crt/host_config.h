// Stand-in for CUDA's header of this name, a check of the host compiler's version that CUDA's pip packages lack.
#pragma once
