#include "other_processes.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace simcuda {
namespace {

struct Share {
  std::string text;  // without "@device"
  int device = -1;   // every device
};

[[noreturn]] void refuse(const char* variable, const std::string& item, const char* wanted) {
  std::fprintf(stderr, "simcuda: %s: '%s': %s\n", variable, item.c_str(), wanted);
  std::_Exit(2);
}

// "7GiB,100MiB@1": 7 GiB on each device, and 100 MiB on device 1.
std::vector<Share> read_shares(const char* variable, std::string list) {
  for (char& letter : list) {
    if (letter == ',' || letter == '\n') letter = ' ';
  }
  std::vector<Share> shares;
  std::istringstream items(list);
  for (std::string item; items >> item;) {
    Share share{item};
    if (const size_t at = item.find('@'); at != std::string::npos) {
      char* end = nullptr;
      share.device = static_cast<int>(std::strtol(item.c_str() + at + 1, &end, 10));
      if (end == item.c_str() + at + 1 || *end != '\0') refuse(variable, item, "a device's number is wanted after '@'");
      share.text = item.substr(0, at);
    }
    shares.push_back(std::move(share));
  }
  return shares;
}

bool is_on(const Share& share, int device) { return share.device < 0 || share.device == device; }

struct PlacedProcess {
  OtherProcess process;
  Share share;
};

const std::vector<PlacedProcess>& processes() {
  static const std::vector<PlacedProcess> all = [] {
    constexpr const char* kVariable = "SIMCUDA_OTHER_PROCESSES";
    std::vector<PlacedProcess> read;
    const char* text = std::getenv(kVariable);
    for (Share& share : read_shares(kVariable, text == nullptr ? "" : text)) {
      char* end = nullptr;
      const unsigned long pid = std::strtoul(share.text.c_str(), &end, 10);
      if (end == share.text.c_str() || *end != ':') {
        refuse(kVariable, share.text, "a process id, a colon and a size are wanted: 4711:2GiB");
      }
      read.push_back({{static_cast<unsigned>(pid), parse_size(kVariable, end + 1)}, share});
    }
    return read;
  }();
  return all;
}

// A file, read at each query, so that a test can change the memory of other processes while its program runs.
uint64_t extra_memory(int device) {
  constexpr const char* kVariable = "SIMCUDA_NVML_EXTRA";
  static const char* const path = std::getenv(kVariable);
  if (path == nullptr || *path == '\0') return 0;
  std::ifstream file(path);
  std::ostringstream content;
  content << file.rdbuf();
  uint64_t sum = 0;
  for (const Share& share : read_shares(kVariable, content.str())) {
    if (is_on(share, device)) sum += parse_size(kVariable, share.text.c_str());
  }
  return sum;
}

}  // namespace

std::vector<OtherProcess> other_processes(int device) {
  std::vector<OtherProcess> found;
  for (const PlacedProcess& placed : processes()) {
    if (is_on(placed.share, device)) found.push_back(placed.process);
  }
  return found;
}

uint64_t memory_used_by_others(int device) {
  uint64_t sum = extra_memory(device);
  for (const OtherProcess& process : other_processes(device)) sum += process.bytes;
  return sum;
}

}  // namespace simcuda
