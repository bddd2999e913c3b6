#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../core/what_if/predict.h"
#include "bindings.h"
#include "numpy_columns.h"

namespace alloctrace {
namespace {

using what_if::AddressOrder;
using what_if::ModelTotals;
using what_if::Prediction;
using what_if::SimulationEvent;
using what_if::SimulationFailure;
using what_if::SimulationOptions;
using what_if::SimulationResult;

AddressOrder parse_address_order(const std::string& name) {
  if (name == "lowest") return AddressOrder::kLowest;
  if (name == "highest") return AddressOrder::kHighest;
  if (name == "random") return AddressOrder::kRandom;
  if (name == "recorded") return AddressOrder::kRecorded;
  throw py::value_error("the address order must be lowest, highest, random or recorded, not " + name);
}

// Return the segment events of a simulation; seq: event of the request.
py::dict event_columns(const std::vector<SimulationEvent>& events) {
  py::dict result;
  result["seq"] = integers(events, [](const SimulationEvent& row) { return row.sequence; });
  result["kind"] = integers(events, [](const SimulationEvent& row) { return static_cast<int>(row.event.kind); });
  result["address"] = addresses(events, [](const SimulationEvent& row) { return row.event.address; });
  result["size"] = integers(events, [](const SimulationEvent& row) { return row.event.size; });
  return result;
}

template <std::uint64_t ModelTotals::* Member>
std::uint64_t total(const SimulationResult& result) {
  return result.totals.*Member;
}

void define_simulation_options(py::module_& module) {
  module.attr("NO_LIMIT") = what_if::kNoLimit;
  py::class_<SimulationOptions>(module, "SimulationOptions")
      .def(py::init([](const std::string& settings, std::optional<std::uint64_t> capacity,
                       std::optional<std::uint64_t> limit, std::uint64_t total, const std::string& order,
                       std::uint64_t seed, const std::vector<std::uint64_t>& must_serve, bool attempts_failed,
                       bool records_events, double batch_factor) {
             return SimulationOptions{settings,
                                      capacity.value_or(what_if::kNoLimit),
                                      limit,
                                      total,
                                      parse_address_order(order),
                                      seed,
                                      must_serve,
                                      attempts_failed,
                                      records_events,
                                      batch_factor};
           }),
           py::arg("settings") = "", py::arg("capacity") = py::none(), py::arg("limit") = py::none(),
           py::arg("total") = std::uint64_t{1} << 40, py::arg("order") = "lowest", py::arg("seed") = 0,
           py::arg("must_serve") = std::vector<std::uint64_t>(), py::arg("attempts_failed") = true,
           py::arg("records_events") = false, py::arg("batch_factor") = 1.0);
}

void define_simulation_failure(py::module_& module) {
  py::class_<SimulationFailure>(module, "SimulationFailure")
      .def_readonly("seq", &SimulationFailure::sequence)
      .def_readonly("requested", &SimulationFailure::requested)
      .def_readonly("needed", &SimulationFailure::needed)
      .def_readonly("reserved", &SimulationFailure::reserved)
      .def_readonly("allocated", &SimulationFailure::allocated);
}

void define_simulation_result(py::module_& module) {
  py::class_<SimulationResult>(module, "SimulationResult")
      .def_readonly("requests", &SimulationResult::requests)
      .def_readonly("peak_used", &SimulationResult::peak_used)
      .def_property_readonly("reserved", &total<&ModelTotals::reserved>)
      .def_property_readonly("peak_reserved", &total<&ModelTotals::peak_reserved>)
      .def_property_readonly("peak_reserved_seq", &total<&ModelTotals::peak_reserved_sequence>)
      .def_property_readonly("peak_allocated", &total<&ModelTotals::peak_allocated>)
      .def_property_readonly("peak_active", &total<&ModelTotals::peak_active>)
      .def_property_readonly("retries", &total<&ModelTotals::retries>)
      .def_property_readonly("segments_allocated", &total<&ModelTotals::segments_allocated>)
      .def_property_readonly("segments_released", &total<&ModelTotals::segments_released>)
      .def_property_readonly("garbage_collected", &total<&ModelTotals::garbage_collected>)
      .def_readonly("failure", &SimulationResult::failure)
      .def_readonly("served", &SimulationResult::served)
      .def_readonly("failed_again", &SimulationResult::failed_again)
      .def_readonly("recorded_events", &SimulationResult::recorded_events)
      .def_readonly("reproduced", &SimulationResult::reproduced)
      .def_readonly("blocks", &SimulationResult::blocks)
      .def_readonly("same_blocks", &SimulationResult::same_blocks)
      .def_readonly("first_difference", &SimulationResult::first_difference)
      .def_readonly("several_pools", &SimulationResult::several_pools)
      .def("events", [](const SimulationResult& result) { return event_columns(result.events); });
}

void define_prediction(py::module_& module) {
  py::class_<Prediction>(module, "Prediction")
      .def_readonly("simulations", &Prediction::simulations)
      .def_readonly("requests", &Prediction::requests)
      .def_readonly("inherited", &Prediction::inherited)
      .def_readonly("inherits_expandable", &Prediction::inherits_expandable);
  module.def(
      "predict",
      [](const std::shared_ptr<const TraceReader>& trace, std::int32_t device_type, std::int32_t device_index,
         std::pair<int, int> release, const std::vector<SimulationOptions>& options,
         const std::vector<std::uint64_t>& growing, const py::object& callback) {
        const Progress progress = with_gil(callback);
        const py::gil_scoped_release unlocked;
        return what_if::predict(trace, device_type, device_index, {release.first, release.second}, options, growing,
                                progress);
      },
      py::arg("trace"), py::arg("device_type"), py::arg("device_index"), py::arg("release"), py::arg("simulations"),
      py::arg("growing") = std::vector<std::uint64_t>(), py::arg("progress") = py::none());
}

}  // namespace

void define_what_if(py::module_& module) {
  define_simulation_options(module);
  define_simulation_failure(module);
  define_simulation_result(module);
  define_prediction(module);
}

}  // namespace alloctrace
