// Settings from the environment, the log, and the thread's last error.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>
#include <utility>

#include "simcuda.h"

namespace simcuda {
namespace {

[[noreturn]] void refuse(const char* variable, const char* text, const char* wanted) {
  std::fprintf(stderr, "simcuda: %s=%s: %s\n", variable, text, wanted);
  std::_Exit(2);
}

uint64_t size_from_environment(const char* variable, uint64_t fallback) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? fallback : parse_size(variable, text);
}

int count_from_environment(const char* variable, int fallback, int largest) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < 0 || value > largest)
    refuse(variable, text, "a number of devices from 0 to 64 is wanted");
  return static_cast<int>(value);
}

std::string text_from_environment(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? "" : text;
}

std::string log_path() {
  std::string path = text_from_environment("SIMCUDA_LOG");
  if (const size_t at = path.find("%p"); at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
  return path;
}

int log_descriptor() {
  static const int descriptor = [] {
    const std::string& path = settings().log;
    if (path.empty()) return -1;
    const int opened = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (opened < 0) {
      std::perror(("simcuda: SIMCUDA_LOG=" + path).c_str());
      std::_Exit(2);  // a missing log would look like a program without allocations
    }
    return opened;
  }();
  return descriptor;
}

thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

uint64_t parse_size(const char* variable, const char* text) {
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  std::string unit(end);
  unit.erase(std::remove_if(unit.begin(), unit.end(), [](unsigned char c) { return std::isspace(c); }), unit.end());
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  static constexpr struct {
    std::string_view name;
    double factor;
  } kUnits[] = {{"", 1},       {"b", 1},        {"k", 0x1p10},   {"kib", 0x1p10}, {"kb", 1e3},
                {"m", 0x1p20}, {"mib", 0x1p20}, {"mb", 1e6},     {"g", 0x1p30},   {"gib", 0x1p30},
                {"gb", 1e9},   {"t", 0x1p40},   {"tib", 0x1p40}, {"tb", 1e12}};
  for (const auto& known : kUnits) {
    if (unit == known.name && end != text && number >= 0 && number * known.factor < 0x1p46) {
      return static_cast<uint64_t>(number * known.factor);
    }
  }
  refuse(variable, text, "a size such as 80GiB, 512MiB or 1000000 is wanted");
}

const Settings& settings() {
  static const Settings values = {
      size_from_environment("SIMCUDA_MEMORY", 80 * GiB),
      count_from_environment("SIMCUDA_DEVICES", 1, 64),
      size_from_environment("SIMCUDA_CONTEXT", 500 * MiB),
      size_from_environment("SIMCUDA_COPY_LIMIT", 16 * MiB),
      size_from_environment("SIMCUDA_CONTENT_LIMIT", 2 * GiB),
      log_path(),
      text_from_environment("SIMCUDA_NVML_HANG"),
  };
  return values;
}

bool logging() { return log_descriptor() >= 0; }

void log_event(const char* format, ...) {
  if (!logging()) return;
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  if (length < 0) return;
  const size_t used = std::min(static_cast<size_t>(length), sizeof line - 2);
  line[used] = '\n';
  if (write(log_descriptor(), line, used + 1) < 0) std::perror("simcuda: SIMCUDA_LOG");
}

void report_unknown_call(const char* name) {
  static std::mutex mutex;
  static std::set<std::string> reported;
  const std::lock_guard guard(mutex);
  if (reported.insert(name).second) std::fprintf(stderr, "simcuda: %s is not simulated\n", name);
}

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

std::mutex& driver_lock() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace simcuda

using simcuda::last_error;

SIMCUDA_EXPORT cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
SIMCUDA_EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }
