// NCCL: communicators of any size, in one process or several, and collectives that are copies on their stream. Nothing
// is sent, and no process waits for another: each assumes that the others sent the data that it sends itself, which is
// true when all run the same program. So shapes that processes compare agree. A receive from a single other process
// writes nothing.
//
// Its header is not included: it belongs to another package.
#include <sys/random.h>

#include <iterator>
#include <memory>

#include "simcuda.h"

namespace simcuda::nccl {
namespace {

enum Result : int { kSuccess = 0, kUnhandledCudaError = 1, kInternalError = 3, kInvalidArgument = 4 };

struct UniqueId {
  char bytes[128];
};

struct Communicator {
  int ranks;
  int rank;
  int ordinal;  // of the device that was current at creation
};

int current_ordinal() {
  int ordinal = 0;
  return cudaGetDevice(&ordinal) == cudaSuccess ? ordinal : 0;
}

Result create(Communicator** out, int ranks, int rank, int ordinal) {
  if (out == nullptr || ranks < 1 || rank < 0 || rank >= ranks) return kInvalidArgument;
  // The real library allocates, and so needs a context.
  if (cudaFree(nullptr) != cudaSuccess) return kUnhandledCudaError;
  *out = std::make_unique<Communicator>(Communicator{ranks, rank, ordinal}).release();
  return kSuccess;
}

Result destroy(Communicator* communicator) {
  const std::unique_ptr<Communicator> owned(communicator);
  return owned == nullptr ? kInvalidArgument : kSuccess;
}

size_t size_of(int type) {
  constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // in the order of ncclDataType_t
  return type >= 0 && type < static_cast<int>(std::size(kSizes)) ? kSizes[type] : 0;
}

// A copy of `count` elements for each of `parts`, one after the other. The stream belongs to the
// communicator's device, which need not be the current one inside a group.
Result work(const Communicator* communicator, cudaStream_t stream, void* to = nullptr, const void* from = nullptr,
            size_t count = 0, int type = 0, int parts = 1) {
  if (communicator == nullptr || size_of(type) == 0) return kInvalidArgument;
  const int before = current_ordinal();
  if (cudaSetDevice(communicator->ordinal) != cudaSuccess) return kUnhandledCudaError;
  const size_t bytes = from == nullptr || to == nullptr ? 0 : count * size_of(type);
  // A copy and no launch, even onto itself: after a launch, a number copied to the device would count as computed by a
  // kernel.
  cudaError_t error = bytes == 0 || parts == 0 ? submit_work(stream) : cudaSuccess;
  for (int part = 0; part < parts && bytes > 0 && error == cudaSuccess; ++part) {
    void* const target = static_cast<char*>(to) + static_cast<size_t>(part) * bytes;
    error = cudaMemcpyAsync(target, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  if (cudaSetDevice(before) != cudaSuccess || error != cudaSuccess) return kUnhandledCudaError;
  return kSuccess;
}

template <class Value>
Result report(const Communicator* communicator, Value Communicator::* what, Value* out) {
  if (communicator == nullptr || out == nullptr) return kInvalidArgument;
  *out = communicator->*what;
  return kSuccess;
}

// Memory that is registered needs nothing; a handle must not be null.
int registered;

}  // namespace
}  // namespace simcuda::nccl

using namespace simcuda::nccl;
using Ignored = const void*;

// --- Communicators
SIMCUDA_EXPORT Result ncclGetUniqueId(UniqueId* id) {
  if (id == nullptr) return kInvalidArgument;
  return getrandom(id->bytes, sizeof id->bytes, 0) == sizeof id->bytes ? kSuccess : kInternalError;
}

SIMCUDA_EXPORT Result ncclCommInitRank(Communicator** out, int ranks, UniqueId, int rank) {
  return create(out, ranks, rank, current_ordinal());
}
SIMCUDA_EXPORT Result ncclCommInitRankConfig(Communicator** out, int ranks, UniqueId, int rank, Ignored) {
  return create(out, ranks, rank, current_ordinal());
}
SIMCUDA_EXPORT Result ncclCommInitRankScalable(Communicator** out, int ranks, int rank, int, UniqueId*, Ignored) {
  return create(out, ranks, rank, current_ordinal());
}

SIMCUDA_EXPORT Result ncclCommInitAll(Communicator** out, int count, const int* ordinals) {
  if (out == nullptr) return kInvalidArgument;
  const int before = current_ordinal();
  for (int rank = 0; rank < count; ++rank) {
    const int ordinal = ordinals == nullptr ? rank : ordinals[rank];
    if (cudaSetDevice(ordinal) != cudaSuccess) return kInvalidArgument;
    if (const Result result = create(&out[rank], count, rank, ordinal); result != kSuccess) return result;
  }
  return cudaSetDevice(before) == cudaSuccess ? kSuccess : kUnhandledCudaError;
}

SIMCUDA_EXPORT Result ncclCommFinalize(Communicator* communicator) {
  return communicator == nullptr ? kInvalidArgument : kSuccess;
}
SIMCUDA_EXPORT Result ncclCommDestroy(Communicator* communicator) { return destroy(communicator); }
SIMCUDA_EXPORT Result ncclCommAbort(Communicator* communicator) { return destroy(communicator); }

SIMCUDA_EXPORT Result ncclCommCount(const Communicator* communicator, int* out) {
  return report(communicator, &Communicator::ranks, out);
}
SIMCUDA_EXPORT Result ncclCommUserRank(const Communicator* communicator, int* out) {
  return report(communicator, &Communicator::rank, out);
}
SIMCUDA_EXPORT Result ncclCommCuDevice(const Communicator* communicator, int* out) {
  return report(communicator, &Communicator::ordinal, out);
}
SIMCUDA_EXPORT Result ncclCommGetAsyncError(const Communicator* communicator, Result* error) {
  if (communicator == nullptr || error == nullptr) return kInvalidArgument;
  *error = kSuccess;
  return kSuccess;
}
// The last error's text: there is none.
SIMCUDA_EXPORT const char* ncclGetLastError(const Communicator*) { return ""; }

// --- Memory
SIMCUDA_EXPORT Result ncclMemAlloc(void** address, size_t size) {
  return cudaMalloc(address, size) == cudaSuccess ? kSuccess : kUnhandledCudaError;
}
SIMCUDA_EXPORT Result ncclMemFree(void* address) {
  return cudaFree(address) == cudaSuccess ? kSuccess : kUnhandledCudaError;
}
SIMCUDA_EXPORT Result ncclCommRegister(const Communicator* communicator, void*, size_t, void** handle) {
  if (communicator == nullptr || handle == nullptr) return kInvalidArgument;
  *handle = &registered;
  return kSuccess;
}
SIMCUDA_EXPORT Result ncclCommDeregister(const Communicator* communicator, void*) {
  return communicator == nullptr ? kInvalidArgument : kSuccess;
}

// --- Operations
SIMCUDA_EXPORT Result ncclGroupStart() { return kSuccess; }
SIMCUDA_EXPORT Result ncclGroupEnd() { return kSuccess; }

SIMCUDA_EXPORT Result ncclRedOpCreatePreMulSum(int* operation, void*, int, int, const Communicator* communicator) {
  if (operation == nullptr || communicator == nullptr) return kInvalidArgument;
  *operation = 5;  // the first number after the built-in ones
  return kSuccess;
}
SIMCUDA_EXPORT Result ncclRedOpDestroy(int, const Communicator* communicator) {
  return communicator == nullptr ? kInvalidArgument : kSuccess;
}

SIMCUDA_EXPORT Result ncclAllReduce(const void* from, void* to, size_t count, int type, int, const Communicator* c,
                                    cudaStream_t stream) {
  return work(c, stream, to, from, count, type);
}
SIMCUDA_EXPORT Result ncclReduce(const void* from, void* to, size_t count, int type, int, int root,
                                 const Communicator* c, cudaStream_t stream) {
  const bool receives = c != nullptr && c->rank == root;
  return work(c, stream, receives ? to : nullptr, from, count, type);
}
SIMCUDA_EXPORT Result ncclReduceScatter(const void* from, void* to, size_t count, int type, int, const Communicator* c,
                                        cudaStream_t stream) {
  const size_t own = c == nullptr ? 0 : static_cast<size_t>(c->rank) * count * size_of(type);
  return work(c, stream, to, static_cast<const char*>(from) + own, count, type);
}
SIMCUDA_EXPORT Result ncclBcast(void* buffer, size_t count, int type, int, const Communicator* c, cudaStream_t stream) {
  return work(c, stream, buffer, buffer, count, type);
}
SIMCUDA_EXPORT Result ncclBroadcast(const void* from, void* to, size_t count, int type, int, const Communicator* c,
                                    cudaStream_t stream) {
  return work(c, stream, to, from, count, type);
}
SIMCUDA_EXPORT Result ncclAllGather(const void* from, void* to, size_t count, int type, const Communicator* c,
                                    cudaStream_t stream) {
  return work(c, stream, to, from, count, type, c == nullptr ? 0 : c->ranks);
}
SIMCUDA_EXPORT Result ncclAlltoAll(const void* from, void* to, size_t count, int type, const Communicator* c,
                                   cudaStream_t stream) {
  return work(c, stream, to, from, c == nullptr ? 0 : count * static_cast<size_t>(c->ranks), type);
}
SIMCUDA_EXPORT Result ncclGather(const void* from, void* to, size_t count, int type, int root, const Communicator* c,
                                 cudaStream_t stream) {
  const bool receives = c != nullptr && c->rank == root;
  return work(c, stream, receives ? to : nullptr, from, count, type, receives ? c->ranks : 0);
}
SIMCUDA_EXPORT Result ncclScatter(const void*, void*, size_t, int, int, const Communicator* c, cudaStream_t stream) {
  return work(c, stream);
}
SIMCUDA_EXPORT Result ncclSend(const void*, size_t, int, int, const Communicator* c, cudaStream_t stream) {
  return work(c, stream);
}
SIMCUDA_EXPORT Result ncclRecv(void*, size_t, int, int, const Communicator* c, cudaStream_t stream) {
  return work(c, stream);
}
