// Stands in for CUDA's header of this name, which the pip packages of CUDA leave out: it checks versions of host
// compilers.
#pragma once
