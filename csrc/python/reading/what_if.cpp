#include "what_if.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../core/what_if/predict.h"
#include "numpy_columns.h"

namespace alloctrace {
namespace {

using what_if::AddressOrder;
using what_if::LaneEvent;
using what_if::LaneOptions;
using what_if::LaneRefusal;
using what_if::LaneResult;
using what_if::ModelTotals;
using what_if::Prediction;

AddressOrder order_named(const std::string& name) {
  if (name == "lowest") return AddressOrder::kLowest;
  if (name == "highest") return AddressOrder::kHighest;
  if (name == "random") return AddressOrder::kRandom;
  if (name == "recorded") return AddressOrder::kRecorded;
  throw py::value_error("an order of addresses is lowest, highest, random or recorded, not " + name);
}

// Each event of a lane: number of the request, kind, address, size.
py::dict event_columns(const std::vector<LaneEvent>& events) {
  py::dict result;
  result["seq"] = integers(events, [](const LaneEvent& row) { return row.sequence; });
  result["kind"] = integers(events, [](const LaneEvent& row) { return static_cast<int>(row.event.kind); });
  result["address"] = addresses(events, [](const LaneEvent& row) { return row.event.address; });
  result["size"] = integers(events, [](const LaneEvent& row) { return row.event.size; });
  return result;
}

template <std::uint64_t ModelTotals::* Member>
std::uint64_t total(const LaneResult& of) {
  return of.totals.*Member;
}

}  // namespace

void define_what_if(py::module_& module) {
  module.attr("NO_LIMIT") = what_if::kNoLimit;
  py::class_<LaneOptions>(module, "SimulationOptions")
      .def(py::init([](const std::string& settings, std::optional<std::uint64_t> capacity,
                       std::optional<std::uint64_t> limit, std::uint64_t total, const std::string& order,
                       std::uint64_t seed, const std::vector<std::uint64_t>& must_serve, bool tries_refused,
                       bool keeps_events) {
             return LaneOptions{settings,
                                capacity.value_or(what_if::kNoLimit),
                                limit,
                                total,
                                order_named(order),
                                seed,
                                must_serve,
                                tries_refused,
                                keeps_events};
           }),
           py::arg("settings") = "", py::arg("capacity") = py::none(), py::arg("limit") = py::none(),
           py::arg("total") = std::uint64_t{1} << 40, py::arg("order") = "lowest", py::arg("seed") = 0,
           py::arg("must_serve") = std::vector<std::uint64_t>(), py::arg("tries_refused") = true,
           py::arg("keeps_events") = false);
  py::class_<LaneRefusal>(module, "SimulationFailure")
      .def_readonly("seq", &LaneRefusal::sequence)
      .def_readonly("requested", &LaneRefusal::requested)
      .def_readonly("needed", &LaneRefusal::needed)
      .def_readonly("reserved", &LaneRefusal::reserved)
      .def_readonly("allocated", &LaneRefusal::allocated);
  py::class_<LaneResult>(module, "SimulationResult")
      .def_readonly("requests", &LaneResult::requests)
      .def_readonly("peak_used", &LaneResult::peak_used)
      .def_property_readonly("reserved", &total<&ModelTotals::reserved>)
      .def_property_readonly("peak_reserved", &total<&ModelTotals::peak_reserved>)
      .def_property_readonly("peak_reserved_seq", &total<&ModelTotals::peak_reserved_sequence>)
      .def_property_readonly("peak_allocated", &total<&ModelTotals::peak_allocated>)
      .def_property_readonly("peak_active", &total<&ModelTotals::peak_active>)
      .def_property_readonly("retries", &total<&ModelTotals::retries>)
      .def_property_readonly("taken", &total<&ModelTotals::taken>)
      .def_property_readonly("given_back", &total<&ModelTotals::given_back>)
      .def_property_readonly("garbage", &total<&ModelTotals::garbage>)
      .def_readonly("refusal", &LaneResult::refusal)
      .def_readonly("served", &LaneResult::served)
      .def_readonly("refused_again", &LaneResult::refused_again)
      .def_readonly("recorded_events", &LaneResult::recorded_events)
      .def_readonly("reproduced", &LaneResult::reproduced)
      .def_readonly("blocks", &LaneResult::blocks)
      .def_readonly("same_blocks", &LaneResult::same_blocks)
      .def_readonly("first_difference", &LaneResult::first_difference)
      .def_readonly("several_pools", &LaneResult::several_pools)
      .def("events", [](const LaneResult& of) { return event_columns(of.events); });
  py::class_<Prediction>(module, "Prediction")
      .def_readonly("simulations", &Prediction::lanes)
      .def_readonly("requests", &Prediction::requests)
      .def_readonly("inherited", &Prediction::inherited)
      .def_readonly("inherits_expandable", &Prediction::inherits_expandable);
  module.def(
      "predict",
      [](const std::shared_ptr<const TraceReader>& trace, std::int32_t device_type, std::int32_t device_index,
         std::pair<int, int> release, const std::vector<LaneOptions>& lanes, const py::object& callback) {
        const Progress progress = with_gil(callback);
        const py::gil_scoped_release unlocked;
        return what_if::predict(trace, device_type, device_index, {release.first, release.second}, lanes, progress);
      },
      py::arg("trace"), py::arg("device_type"), py::arg("device_index"), py::arg("release"), py::arg("simulations"),
      py::arg("progress") = py::none());
}

}  // namespace alloctrace
