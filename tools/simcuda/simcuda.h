// Shared by all parts of the simulated device: settings, the log, errors, and device figures.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#define SIMCUDA_EXPORT extern "C" __attribute__((visibility("default")))

namespace simcuda {

constexpr uint64_t KiB = 1024;
constexpr uint64_t MiB = 1024 * KiB;
constexpr uint64_t GiB = 1024 * MiB;
// The unit in which the driver maps memory, and so the minimum size of an allocation.
constexpr uint64_t kPage = 2 * MiB;

struct Settings {
  uint64_t memory;         // SIMCUDA_MEMORY: capacity of each device
  int devices;             // SIMCUDA_DEVICES
  uint64_t context;        // SIMCUDA_CONTEXT: size of a device's context
  uint64_t copy_limit;     // SIMCUDA_COPY_LIMIT: larger copies and fills store no content
  uint64_t content_limit;  // SIMCUDA_CONTENT_LIMIT: limit on all stored content
  std::string log;         // SIMCUDA_LOG: path, or empty
  std::string nvml_hang;   // SIMCUDA_NVML_HANG: path, or empty
};
// Read from the environment at the first call.
const Settings& settings();
// "80GiB", "512MiB", "1e9", "123": bytes. If the text is not a size, ends the process with a message that names the
// variable.
uint64_t parse_size(const char* variable, const char* text);

// Writes one line of SIMCUDA_LOG, in one write. Costs nothing without a log.
bool logging();
void log_event(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Reports once per name, on stderr, that the program called something that is not simulated.
void report_unknown_call(const char* name);

// Stores the error for cudaGetLastError, as every runtime call does, and returns it.
cudaError_t result(cudaError_t error);
inline CUresult driver_result(cudaError_t error) { return static_cast<CUresult>(error); }  // the numbers are the same

// The one lock of the simulated driver. Never held while the program's own functions run.
std::mutex& driver_lock();
using Lock = std::unique_lock<std::mutex>;

// --- Devices. "Device" is an index of all simulated devices; CUDA_VISIBLE_DEVICES picks and orders those that the
// runtime shows.
struct DeviceMemory {
  uint64_t total;
  uint64_t used;     // everything: this process, its context, other processes
  uint64_t process;  // this process and its context
};
DeviceMemory device_memory(int device);
const char* device_name();
std::array<unsigned char, 16> device_uuid(int device);
std::string device_uuid_text(int device);   // "GPU-73696d63-..."
std::string device_pci_bus_id(int device);  // "00000000:01:00.0"
const std::vector<int>& visible_devices();
int current_device();  // the calling thread's

// --- Streams. For libraries that launch kernels: work on the stream, or a kernel node while it captures.
cudaError_t submit_work(cudaStream_t stream);

// Defined by other parts, if they exist.
void switch_off_cudnn() __attribute__((weak));
uint64_t memory_used_by_others(int device) __attribute__((weak));

}  // namespace simcuda
