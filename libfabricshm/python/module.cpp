// The Python extension fabricshm._fabricshm: the C ABI as objects. What people call is in the
// Python files of the package, which add types, names and checks.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <iterator>

#include "kernels/dtype.hpp"
#include "kernels/optimise.hpp"
#include "libfabricshm/collective/kinds.hpp"
#include "libfabricshm/python/arena.hpp"
#include "libfabricshm/python/cuda.hpp"
#include "libfabricshm/python/data.hpp"
#include "libfabricshm/python/dlpack.hpp"
#include "libfabricshm/python/errors.hpp"
#include "libfabricshm/python/group.hpp"
#include "libfabricshm/python/parameters.hpp"
#include "libfabricshm/python/pixels.hpp"
#include "libfabricshm/python/request.hpp"
#include "libfabricshm/python/session.hpp"

namespace py = pybind11;
using namespace fabricshm::python;

namespace {

// What the Python files know of types, operations and kinds is what the tables say.
void bind_tables(py::module_& module) {
    using kernels::DTypeRow;
    py::class_<DTypeRow>(module, "DType")
        .def_property_readonly("name", [](const DTypeRow& row) { return row.python; })
        .def_property_readonly("code",
                               [](const DTypeRow& row) { return static_cast<int>(row.type); })
        .def_property_readonly("numpy", [](const DTypeRow& row) { return row.numpy; })
        .def_property_readonly("located",
                               [](const DTypeRow& row) { return kernels::is_located(row.type); });
    py::list types;
    for (const DTypeRow& row : kernels::kDTypeRows) types.append(row);
    module.attr("DTYPES") = types;
    py::dict ops, kinds;
    for (const auto& row : kernels::kReduceOpRows) ops[row.name] = static_cast<int>(row.op);
    for (int kind = 0; kind < fabricshm::kKindCount; ++kind) {
        kinds[fabricshm::kKindRows[kind].name] = kind;
    }
    module.attr("OPS") = ops;
    module.attr("KINDS") = kinds;
}

// Names and arguments as the package's Python files use them; defaults, units and documentation are
// there.
void bind_session(py::module_& module) {
    py::class_<Session>(module, "Session")
        .def(py::init<const std::optional<std::string>&, std::int64_t,
                      const std::optional<std::string>&, const std::optional<std::string>&>(),
             py::arg("socket"), py::arg("timeout_ms"), py::arg("label"), py::arg("device"))
        .def("open_arena", &Session::open_arena, py::arg("name"), py::arg("bytes"),
             py::arg("exclusive"), py::arg("local"))
        .def("step", &Session::step, py::arg("samples"), py::arg("loss"), py::arg("gradient_norm"),
             py::arg("mean_gradient_norm"), py::arg("compute_ns"), py::arg("queue"),
             py::arg("group"))
        .def("directives", &Session::directives)
        .def("quotas", &Session::quotas)
        .def("hosts", &Session::hosts)
        .def("close", &Session::close)
        .def_property_readonly("closed", &Session::closed);
}

fabricshm_launch launch() {
    fabricshm_launch read{};
    read.struct_size = sizeof read;
    check(fabricshm_launcher(&read));
    return read;
}

void bind_launch(py::module_& module) {
    const auto or_none = [](std::int32_t number) -> std::optional<std::int32_t> {
        if (number < 0) return std::nullopt;
        return number;
    };
    using Launch = fabricshm_launch;
    py::class_<Launch>(module, "Launch")
        .def_readonly("rank", &Launch::rank)
        .def_readonly("world", &Launch::world)
        .def_property_readonly("local_rank", [=](const Launch& l) { return or_none(l.local_rank); })
        .def_property_readonly("local_world",
                               [=](const Launch& l) { return or_none(l.local_world); })
        .def_property_readonly("node", [=](const Launch& l) { return or_none(l.node); })
        .def_property_readonly("nodes", [=](const Launch& l) { return or_none(l.nodes); })
        .def_readonly("launcher", &Launch::launcher);
    module.def("launch", &launch);
}

// A number that the library of a later version may know, as its name.
template <std::size_t count>
const char* name_in(const char* const (&names)[count], std::int32_t number) {
    const bool known = number >= 0 && static_cast<std::size_t>(number) < count;
    return known ? names[number] : "unknown";
}

constexpr const char* kHostStates[] = {"listed", "up", "back", "suspect", "lost", "fenced"};
static_assert(std::size(kHostStates) == FABRICSHM_HOST_FENCED + 1);
constexpr const char* kFences[] = {"none",    "person",  "command",    "failed",      "by command",
                                   "by boot", "by self", "by leaving", "by operator", "by other"};
static_assert(std::size(kFences) == FABRICSHM_FENCE_BY_OTHER + 1);

void bind_hosts(py::module_& module) {
    using Host = fabricshm_host;
    py::class_<Host>(module, "Host")
        .def_property_readonly("name", [](const Host& self) { return std::string(self.name); })
        .def_readonly("incarnation", &Host::incarnation)
        .def_property_readonly("state",
                               [](const Host& self) { return name_in(kHostStates, self.state); })
        .def_property_readonly(
            "seconds", [](const Host& self) { return static_cast<double>(self.state_ms) / 1000; })
        .def_property_readonly("fence",
                               [](const Host& self) -> std::optional<std::string> {
                                   if (self.fence == FABRICSHM_FENCE_NONE) return std::nullopt;
                                   return name_in(kFences, self.fence);
                               })
        .def_property_readonly(
            "own", [](const Host& self) { return (self.flags & FABRICSHM_HOST_SELF) != 0; })
        .def_property_readonly(
            "newest", [](const Host& self) { return (self.flags & FABRICSHM_HOST_NEWEST) != 0; });
    py::class_<KnownHosts>(module, "Hosts")
        .def_readonly("admits", &KnownHosts::admits)
        .def_property_readonly("hosts", [](const KnownHosts& self) { return self.hosts; });
}

// Lists of the ranks of the group it is about, since only those mean something.
template <typename T>
std::vector<T> of_ranks(const fabricshm_directive& self, const T (&values)[FABRICSHM_PEERS_MAX]) {
    return {values, values + self.world};
}

void bind_directive(py::module_& module) {
    py::class_<fabricshm_directive>(module, "Directive")
        .def_readonly("serial", &fabricshm_directive::serial)
        .def_readonly("decision", &fabricshm_directive::decision)
        .def_readonly("group_id", &fabricshm_directive::group_id)
        .def_readonly("world", &fabricshm_directive::world)
        .def_readonly("sync_interval", &fabricshm_directive::sync_interval)
        .def_property_readonly(
            "batch_share",
            [](const fabricshm_directive& self) { return of_ranks(self, self.batch_share); })
        .def_property_readonly("work_units", [](const fabricshm_directive& self) {
            return of_ranks(self, self.work_units);
        });
}

// No limit is None in Python.
std::optional<std::uint64_t> limit_or_none(std::uint64_t bytes) {
    if (bytes == FABRICSHM_NO_LIMIT) return std::nullopt;
    return bytes;
}

void bind_quota(py::module_& module) {
    py::class_<fabricshm_limit>(module, "Limit")
        .def_property_readonly(
            "limit_bytes",
            [](const fabricshm_limit& self) { return limit_or_none(self.limit_bytes); })
        .def_property_readonly(
            "target_bytes",
            [](const fabricshm_limit& self) { return limit_or_none(self.target_bytes); })
        .def_readonly("used_bytes", &fabricshm_limit::used_bytes)
        .def_property_readonly("seconds_left", [](const fabricshm_limit& self) {
            return static_cast<double>(self.left_ms) / 1000;
        });
    py::class_<fabricshm_quota>(module, "Quota")
        .def_readonly("serial", &fabricshm_quota::serial)
        .def_readonly("device", &fabricshm_quota::device)
        .def_readonly("user", &fabricshm_quota::user);
}

void bind_shards(py::module_& module) {
    py::class_<ShardView>(module, "ShardView")
        .def_property_readonly("array", &ShardView::array)
        .def_property_readonly("shape", &ShardView::shape)
        .def_property_readonly("dtype", [](const ShardView& self) { return int{self.view.dtype}; })
        .def_property_readonly("version", [](const ShardView& self) { return self.view.version; });
    py::class_<Shard>(module, "Shard")
        .def("read", &Shard::read, py::arg("version"), py::arg("timeout_ms"))
        .def("release", &Shard::release, py::arg("view"))
        .def("write", &Shard::write)
        .def("publish", &Shard::publish)
        .def("move", &Shard::move, py::arg("target"), py::arg("bytes_per_second"))
        .def("free", &Shard::free)
        .def("close", &Shard::close);
}

void bind_memory(py::module_& module) {
    py::class_<Region>(module, "Region")
        .def_property_readonly("id", [](const Region& self) { return self.region.id; })
        .def_property_readonly("generation",
                               [](const Region& self) { return self.region.generation; })
        .def_property_readonly("offset", [](const Region& self) { return self.region.offset; })
        .def_property_readonly("bytes", [](const Region& self) { return self.region.bytes; })
        .def_property_readonly("array", &Region::array)
        .def("free", &Region::free);
    py::class_<NamedTensor>(module, "NamedTensor")
        .def_property_readonly(
            "name", [](const NamedTensor& self) { return std::string(self.tensor.name); })
        .def_property_readonly("dtype",
                               [](const NamedTensor& self) { return int{self.tensor.dtype}; })
        .def_property_readonly("region_id",
                               [](const NamedTensor& self) { return self.tensor.region_id; })
        .def_property_readonly("shape", &NamedTensor::shape)
        .def_property_readonly("array", &NamedTensor::array)
        .def("publish", &NamedTensor::publish)
        .def("wait", &NamedTensor::wait, py::arg("version"), py::arg("timeout_ms"))
        .def("free", &NamedTensor::free);
    py::class_<Arena, std::shared_ptr<Arena>>(module, "Arena")
        .def_property_readonly("bytes", &Arena::bytes)
        .def("contains", &Arena::contains, py::arg("array"))
        .def("allocate", &Arena::allocate, py::arg("bytes"))
        .def("create_region", &Arena::create_region, py::arg("bytes"))
        .def("open_region", &Arena::open_region, py::arg("id"))
        .def("create_tensor", &Arena::create_tensor, py::arg("name"), py::arg("dtype"),
             py::arg("shape"))
        .def("open_tensor", &Arena::open_tensor, py::arg("name"), py::arg("timeout_ms"))
        .def("create_shard", &Arena::create_shard, py::arg("name"), py::arg("dtype"),
             py::arg("shape"))
        .def("open_shard", &Arena::open_shard, py::arg("name"), py::arg("timeout_ms"))
        .def("join", &Arena::join, py::arg("name"), py::arg("rank"), py::arg("world"),
             py::arg("timeout_ms"))
        .def("join_hosts", &Arena::join_hosts, py::arg("name"), py::arg("rank"), py::arg("world"),
             py::arg("exchange"), py::arg("trusted"), py::arg("timeout_ms"))
        .def("close", &Arena::close)
        .def_property_readonly("closed", &Arena::closed);
}

void bind_cuda(py::module_& module) {
    using Step = CudaGroup::Step;
    py::class_<Step>(module, "CudaStep")
        .def(py::init<>())
        .def_readwrite("optimiser", &Step::optimiser)
        .def_readwrite("gradient_dtype", &Step::gradient_dtype)
        .def_readwrite("publish_dtype", &Step::publish_dtype)
        .def_readwrite("scale", &Step::scale)
        .def_readwrite("total", &Step::total)
        .def_readwrite("begin", &Step::begin)
        .def_readwrite("count", &Step::count)
        .def_readwrite("factors", &Step::factors)
        .def_readwrite("parameters", &Step::parameters)
        .def_readwrite("first", &Step::first)
        .def_readwrite("second", &Step::second)
        .def_readwrite("maximum", &Step::maximum)
        .def_readwrite("gradient", &Step::gradient)
        .def_readwrite("publish", &Step::publish);
    py::class_<CudaGroup>(module, "CudaGroup")
        .def(py::init<const Group&, int, std::uint64_t, std::int64_t>(), py::arg("group"),
             py::arg("device"), py::arg("stage_bytes"), py::arg("timeout_ms"))
        .def_static("factors", &CudaGroup::factors, py::arg("optimiser"), py::arg("hyper"),
                    py::arg("step"))
        .def("step", &CudaGroup::step, py::arg("step"), py::arg("stream"))
        .def("all_gather", &CudaGroup::all_gather, py::arg("input"), py::arg("output"),
             py::arg("count"), py::arg("dtype"), py::arg("stream"))
        .def("broadcast", &CudaGroup::broadcast, py::arg("buffer"), py::arg("count"),
             py::arg("dtype"), py::arg("root"), py::arg("stream"))
        .def("status", &CudaGroup::status)
        .def("wait", &CudaGroup::wait, py::arg("stream"), py::arg("timeout_ms"))
        .def("leave", &CudaGroup::leave);
}

void bind_parameters(py::module_& module) {
    py::dict rules;
    for (const auto& row : kernels::kRuleRows) {
        rules[row.name] = py::make_tuple(static_cast<int>(row.rule), row.states());
    }
    module.attr("OPTIMISERS") = rules;
    py::class_<fabricshm_hyper>(module, "Hyper")
        .def(py::init([] { return fabricshm_hyper_make(1e-3); }))
        .def_readwrite("learning_rate", &fabricshm_hyper::learning_rate)
        .def_readwrite("beta1", &fabricshm_hyper::beta1)
        .def_readwrite("beta2", &fabricshm_hyper::beta2)
        .def_readwrite("epsilon", &fabricshm_hyper::epsilon)
        .def_readwrite("weight_decay", &fabricshm_hyper::weight_decay)
        .def_readwrite("momentum", &fabricshm_hyper::momentum)
        .def_readwrite("dampening", &fabricshm_hyper::dampening)
        .def_readwrite("nesterov", &fabricshm_hyper::nesterov)
        .def_readwrite("maximize", &fabricshm_hyper::maximize);
    py::class_<fabricshm_step_report>(module, "StepReport")
        .def_readonly("step", &fabricshm_step_report::step)
        .def_readonly("norm", &fabricshm_step_report::norm)
        .def_property_readonly("skipped",
                               [](const fabricshm_step_report& self) { return self.skipped != 0; })
        .def_property_readonly("waited",
                               [](const fabricshm_step_report& self) {
                                   return static_cast<double>(self.waited_ns) * 1e-9;
                               })
        .def_property_readonly("computed", [](const fabricshm_step_report& self) {
            return static_cast<double>(self.computed_ns) * 1e-9;
        });
    py::class_<Parameters>(module, "Parameters")
        .def(py::init(&Parameters::open), py::arg("group"), py::arg("name"), py::arg("spec"),
             py::arg("optimiser"), py::arg("gradients"), py::arg("copy"), py::arg("slots"),
             py::arg("arena"), py::arg("timeout_ms"))
        .def_static("estimate", &Parameters::estimate, py::arg("group"), py::arg("spec"),
                    py::arg("optimiser"), py::arg("gradients"), py::arg("copy"), py::arg("arena"),
                    py::arg("timeout_ms"))
        .def_static("bytes", &Parameters::bytes, py::arg("spec"), py::arg("optimiser"),
                    py::arg("gradients"), py::arg("copy"), py::arg("slots"))
        .def("view", &Parameters::view, py::arg("index"))
        .def("step", &Parameters::step, py::arg("hyper"), py::arg("weight"), py::arg("scale"),
             py::arg("clip_norm"), py::arg("skip_nonfinite"), py::arg("timeout_ms"))
        .def("push", &Parameters::push, py::arg("hyper"), py::arg("weight"), py::arg("scale"),
             py::arg("timeout_ms"))
        .def("pull", &Parameters::pull, py::arg("values"), py::arg("timeout_ms"))
        .def("advance", &Parameters::advance, py::arg("staleness"), py::arg("timeout_ms"))
        .def("finish", &Parameters::finish, py::arg("timeout_ms"))
        .def("share", &Parameters::share, py::arg("shares"))
        .def("recover", &Parameters::recover, py::arg("group"), py::arg("timeout_ms"))
        .def("set_steps", &Parameters::set_steps, py::arg("steps"))
        .def_property_readonly("steps", &Parameters::steps)
        .def("snapshot_begin", &Parameters::snapshot_begin, py::arg("directory"), py::arg("keep"),
             py::arg("file_bytes"), py::arg("plain_writes"), py::arg("timeout_ms"))
        .def("snapshot_wait", &Parameters::snapshot_wait, py::arg("timeout_ms"))
        .def_property_readonly("snapshot_over", &Parameters::snapshot_over)
        .def("restore", &Parameters::restore, py::arg("path"), py::arg("timeout_ms"))
        .def("close", &Parameters::close);
    module.def("free_parameters", &free_parameters, py::arg("arena"), py::arg("name"));
}

void bind_snapshots(py::module_& module) {
    const auto has = [](std::uint32_t bit) {
        return [bit](const fabricshm_snapshot_report& self) { return (self.path & bit) != 0; };
    };
    py::class_<fabricshm_snapshot_report>(module, "SnapshotReport")
        .def_readonly("step", &fabricshm_snapshot_report::step)
        .def_readonly("bytes", &fabricshm_snapshot_report::bytes)
        .def_property_readonly("staged",
                               [](const fabricshm_snapshot_report& self) {
                                   return static_cast<double>(self.staged_ns) * 1e-9;
                               })
        .def_property_readonly("total",
                               [](const fabricshm_snapshot_report& self) {
                                   return static_cast<double>(self.total_ns) * 1e-9;
                               })
        .def_property_readonly("uring", has(FABRICSHM_SNAPSHOT_URING))
        .def_property_readonly("registered", has(FABRICSHM_SNAPSHOT_REGISTERED))
        .def_property_readonly("direct", has(FABRICSHM_SNAPSHOT_DIRECT));
    module.def("latest_snapshot", &latest_snapshot, py::arg("directory"));
}

void bind_group(py::module_& module) {
    py::class_<CallArguments>(module, "Call")
        .def(py::init<>())
        .def_readwrite("kind", &CallArguments::kind)
        .def_readwrite("dtype", &CallArguments::dtype)
        .def_readwrite("input", &CallArguments::input)
        .def_readwrite("output", &CallArguments::output)
        .def_readwrite("count", &CallArguments::count)
        .def_readwrite("op", &CallArguments::op)
        .def_readwrite("root", &CallArguments::root)
        .def_readwrite("peer", &CallArguments::peer)
        .def_readwrite("tag", &CallArguments::tag)
        .def_readwrite("algorithm", &CallArguments::algorithm)
        .def_readwrite("trigger", &CallArguments::trigger)
        .def_readwrite("flags", &CallArguments::flags)
        .def_readwrite("timeout_ms", &CallArguments::timeout_ms)
        .def_readwrite("counts", &CallArguments::counts)
        .def_readwrite("recv_counts", &CallArguments::recv_counts);
    py::class_<SymmetricArguments>(module, "SymmetricCall")
        .def(py::init<>())
        .def_readwrite("method", &SymmetricArguments::method)
        .def_readwrite("dtype", &SymmetricArguments::dtype)
        .def_readwrite("algorithm", &SymmetricArguments::algorithm)
        .def_readwrite("n", &SymmetricArguments::n)
        .def_readwrite("input", &SymmetricArguments::input)
        .def_readwrite("output", &SymmetricArguments::output)
        .def_readwrite("max_error", &SymmetricArguments::max_error)
        .def_readwrite("timeout_ms", &SymmetricArguments::timeout_ms);
    py::class_<fabricshm_symmetric_report>(module, "SymmetricReport")
        .def_property_readonly(
            "method",
            [](const fabricshm_symmetric_report& self) { return static_cast<int>(self.method); })
        .def_property_readonly(
            "obstacle",
            [](const fabricshm_symmetric_report& self) { return static_cast<int>(self.obstacle); })
        .def_readonly("jitter", &fabricshm_symmetric_report::jitter)
        .def_readonly("error", &fabricshm_symmetric_report::error)
        .def_readonly("sent_bytes", &fabricshm_symmetric_report::sent_bytes)
        .def_readonly("fallbacks", &fabricshm_symmetric_report::fallbacks);
    py::class_<Group, std::shared_ptr<Group>>(module, "Group")
        .def_property_readonly("rank", &Group::rank)
        .def_property_readonly("world", &Group::world)
        .def_property_readonly("hosts", &Group::hosts)
        .def_property_readonly("id", &Group::id)
        .def("run", &Group::run, py::arg("call"))
        .def("start", &Group::start, py::arg("call"))
        .def("run_symmetric", &Group::run_symmetric, py::arg("call"))
        .def("shrink", &Group::shrink, py::arg("timeout_ms"))
        .def("quiesce", &Group::quiesce, py::arg("timeout_ms"))
        .def("leave", &Group::leave)
        .def_property_readonly("left", &Group::left);
    py::class_<Request, std::shared_ptr<Request>>(module, "Request")
        .def("test", &Request::test)
        .def("wait", &Request::wait)
        .def_property_readonly("peer", &Request::peer);
}

}  // namespace

PYBIND11_MODULE(_fabricshm, module) {
    module.doc() = "The C ABI of libfabricshm. Use the package fabricshm, not this module.";
    module.attr("ANY_RANK") = FABRICSHM_ANY_RANK;
    module.attr("ANY_PEER") = FABRICSHM_ANY_PEER;
    module.attr("TIMEOUT_DEFAULT") = FABRICSHM_TIMEOUT_DEFAULT;
    module.def("version", &fabricshm_version);
    module.def("to_dlpack", &to_dlpack, py::arg("array"), py::arg("type"));
    module.def("from_dlpack", &from_dlpack, py::arg("capsule"));
    module.def("pixel_table", &pixel_table, py::arg("type"), py::arg("mean"), py::arg("std"));
    module.def("map_pixels", &map_pixels, py::arg("picture"), py::arg("type"), py::arg("tables"),
               py::arg("out"), py::arg("planes"));
    bind_tables(module);
    bind_launch(module);
    bind_session(module);
    bind_hosts(module);
    bind_directive(module);
    bind_quota(module);
    bind_shards(module);
    bind_memory(module);
    bind_group(module);
    bind_parameters(module);
    bind_cuda(module);
    bind_snapshots(module);
    bind_data(module);
}
