#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>

#include "../../core/replay/allocator_rules.h"
#include "bindings.h"
#include "numpy_columns.h"

namespace py = pybind11;

namespace alloctrace {

void define_allocator_settings(py::module_& module) {
  module.attr("MIN_BLOCK_SIZE") = kMinimumBlock;
  module.attr("SMALL_REQUEST") = kSmallRequest;
  module.attr("SMALL_SEGMENT") = kSmallSegment;
  module.attr("MIN_SPLIT_SIZE") = kMinSplitSize;
  py::class_<AllocatorSettings>(module, "AllocatorSettings")
      .def(py::init([](const std::string& json) {
             AllocatorSettings settings;
             settings.read(json);
             return settings;
           }),
           py::arg("json") = "")
      .def_readonly("expandable_segments", &AllocatorSettings::expandable_segments)
      .def_property_readonly("max_split_size",
                             [](const AllocatorSettings& settings) -> std::optional<std::uint64_t> {
                               if (settings.max_split_size == UINT64_MAX) return std::nullopt;
                               return settings.max_split_size;
                             })
      .def("segment_size", &AllocatorSettings::segment_size, py::arg("rounded"))
      .def(
          "mapping_unit",
          [](const AllocatorSettings& settings, bool is_large) { return clamped(settings.mapping_unit(is_large)); },
          py::kw_only(), py::arg("is_large"))
      .def_readonly("large_segment_size", &AllocatorSettings::large_segment_size)
      .def_readonly("max_non_split_rounding_size", &AllocatorSettings::max_non_split_rounding_size)
      .def_readonly("garbage_collection_threshold", &AllocatorSettings::garbage_collection_threshold)
      .def_readonly("roundup_power2_divisions", &AllocatorSettings::roundup_power2_divisions)
      .def("rounded", &AllocatorSettings::rounded, py::arg("bytes"))
      .def("splits",
           [](const AllocatorSettings& settings, std::uint64_t block, std::uint64_t requested, bool is_large) {
             return settings.splits(block, requested, is_large, settings.expandable_segments);
           });
}

}  // namespace alloctrace
