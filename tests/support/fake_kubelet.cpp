#include "tests/support/fake_kubelet.hpp"

#include <grpc/grpc.h>
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "libfabricshm/base/check.hpp"

using namespace std::chrono_literals;

namespace test_support {

namespace {

constexpr auto kKubeletTimeout = 60s;
constexpr auto kCallTimeout = 10s;

grpc::ByteBuffer buffer_of(const std::string& message) {
    const grpc::Slice slice(message);
    return {&slice, 1};
}

std::string text_of(const grpc::ByteBuffer& buffer) {
    grpc::Slice slice;
    if (!buffer.Valid() || !buffer.DumpToSingleSlice(&slice).ok()) return "";
    return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

std::shared_ptr<grpc::Channel> channel_to(const std::string& socket) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(),
                                     arguments);
}

bool next_is_ok(grpc::CompletionQueue& queue) {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
}

void empty_queue(grpc::CompletionQueue& queue) {
    queue.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) {
    }
}

struct Field {
    int number = 0;
    int kind = 0;  // 0: a number, 2: bytes
    std::uint64_t value = 0;
    std::string bytes;
};

std::uint64_t take_varint(std::string_view& rest) {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        FABRIC_CHECK(!rest.empty() && shift < 64);
        const auto byte = static_cast<unsigned char>(rest.front());
        rest.remove_prefix(1);
        value |= std::uint64_t{byte & 127U} << shift;
        if (byte < 128) return value;
    }
}

std::vector<Field> fields_of(std::string_view rest) {
    std::vector<Field> fields;
    while (!rest.empty()) {
        const std::uint64_t key = take_varint(rest);
        Field field{static_cast<int>(key >> 3), static_cast<int>(key & 7), take_varint(rest), ""};
        FABRIC_CHECK(field.kind == 0 || (field.kind == 2 && field.value <= rest.size()));
        if (field.kind == 2) {
            field.bytes = rest.substr(0, field.value);
            rest.remove_prefix(field.value);
        }
        fields.push_back(field);
    }
    return fields;
}

std::string varint(std::uint64_t value) {
    std::string text;
    for (; value >= 128; value >>= 7) text += static_cast<char>(value | 128);
    return text + static_cast<char>(value);
}

// The last one counts; one that is missing is empty.
std::string string_of(std::string_view message, int number) {
    const Strings all = wire::bytes_of(message, number);
    return all.empty() ? "" : all.back();
}

bool flag_of(std::string_view message, int number) {
    const auto all = wire::numbers_of(message, number);
    return !all.empty() && all.back() != 0;
}

}  // namespace

namespace wire {

std::string bytes_field(int number, std::string_view bytes) {
    return varint(static_cast<std::uint64_t>(number) << 3 | 2) + varint(bytes.size()) +
           std::string(bytes);
}

std::string number_field(int number, std::uint64_t value) {
    return varint(static_cast<std::uint64_t>(number) << 3) + varint(value);
}

Strings bytes_of(std::string_view message, int number) {
    Strings found;
    for (const Field& field : fields_of(message)) {
        if (field.number == number && field.kind == 2) found.push_back(field.bytes);
    }
    return found;
}

std::vector<std::uint64_t> numbers_of(std::string_view message, int number) {
    std::vector<std::uint64_t> found;
    for (const Field& field : fields_of(message)) {
        if (field.number == number && field.kind == 0) found.push_back(field.value);
    }
    return found;
}

}  // namespace wire

struct FakeKubelet::Service {
    mutable std::mutex mutex;
    mutable std::condition_variable changed;
    std::vector<Registered> registrations;
    std::string refusal;
    std::unique_ptr<grpc::CallbackGenericService> calls;  // one for each server
    std::unique_ptr<grpc::Server> server;

    grpc::Status take(const std::string& method, const std::string& message);
};

namespace {

/// One call: a message, then an empty one back or an error.
class OneCall : public grpc::ServerGenericBidiReactor {
  public:
    OneCall(FakeKubelet::Service& service, std::string method)
        : service_(service), method_(std::move(method)) {
        StartRead(&request_);
    }
    void OnReadDone(bool ok) override {
        const grpc::Status status = ok ? service_.take(method_, text_of(request_))
                                       : grpc::Status(grpc::StatusCode::INTERNAL, "no message");
        if (!status.ok()) return Finish(status);
        reply_ = buffer_of("");
        StartWriteAndFinish(&reply_, grpc::WriteOptions(), status);
    }
    void OnDone() override { delete this; }

  private:
    FakeKubelet::Service& service_;
    std::string method_;
    grpc::ByteBuffer request_, reply_;
};

class AllCalls : public grpc::CallbackGenericService {
  public:
    explicit AllCalls(FakeKubelet::Service& service) : service_(service) {}
    grpc::ServerGenericBidiReactor* CreateReactor(
        grpc::GenericCallbackServerContext* context) override {
        return new OneCall(service_, context->method());
    }

  private:
    FakeKubelet::Service& service_;
};

}  // namespace

grpc::Status FakeKubelet::Service::take(const std::string& method, const std::string& message) {
    if (method != "/v1beta1.Registration/Register") {
        return {grpc::StatusCode::UNIMPLEMENTED, method};
    }
    const std::string options = string_of(message, 4);
    const std::scoped_lock lock(mutex);
    registrations.push_back({string_of(message, 1), string_of(message, 2), string_of(message, 3),
                             flag_of(options, 2), flag_of(options, 1)});
    changed.notify_all();
    return refusal.empty() ? grpc::Status::OK : grpc::Status(grpc::StatusCode::UNKNOWN, refusal);
}

FakeKubelet::FakeKubelet(std::string folder)
    : folder_(std::move(folder)), service_(std::make_unique<Service>()) {
    // Never given back: the end of the last use may wait ten seconds for gRPC's own threads.
    ::grpc_init();
}
FakeKubelet::~FakeKubelet() {
    stop();
}

void FakeKubelet::start() {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
        if (entry.is_socket()) std::filesystem::remove(entry.path());
    }
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + folder_ + "/kubelet.sock",
                             grpc::InsecureServerCredentials());
    service_->calls = std::make_unique<AllCalls>(*service_);
    builder.RegisterCallbackGenericService(service_->calls.get());
    service_->server = builder.BuildAndStart();
    FABRIC_CHECK(service_->server != nullptr);
}

void FakeKubelet::stop() {
    if (service_->server == nullptr) return;
    service_->server->Shutdown(std::chrono::system_clock::now() + kCallTimeout);
    service_->server.reset();
}

void FakeKubelet::refuse_with(const std::string& text) {
    const std::scoped_lock lock(service_->mutex);
    service_->refusal = text;
}

std::vector<Registered> FakeKubelet::registrations() const {
    const std::scoped_lock lock(service_->mutex);
    return service_->registrations;
}

bool FakeKubelet::await_registrations(std::size_t count) const {
    std::unique_lock lock(service_->mutex);
    return service_->changed.wait_for(lock, kKubeletTimeout,
                                      [&] { return service_->registrations.size() >= count; });
}

struct PluginClient::Channel {
    std::shared_ptr<grpc::Channel> channel;
};

PluginClient::PluginClient(const std::string& socket)
    : channel_(std::make_unique<Channel>(Channel{channel_to(socket)})) {}
PluginClient::~PluginClient() = default;

PluginClient::Reply PluginClient::call(const std::string& method, const std::string& message) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    grpc::CompletionQueue queue;
    grpc::GenericStub stub(channel_->channel);
    const auto call = stub.PrepareUnaryCall(&context, "/v1beta1.DevicePlugin/" + method,
                                            buffer_of(message), &queue);
    call->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->Finish(&reply, &status, nullptr);
    next_is_ok(queue);
    empty_queue(queue);
    return {status.error_code(), status.error_message(), text_of(reply)};
}

PluginClient::Reply PluginClient::allocate(const std::vector<Strings>& containers) {
    std::string message;
    for (const Strings& ids : containers) {
        std::string container;
        for (const std::string& id : ids) container += wire::bytes_field(1, id);
        message += wire::bytes_field(1, container);
    }
    return call("Allocate", message);
}

std::vector<Granted> PluginClient::granted_of(const Reply& reply) {
    std::vector<Granted> all;
    for (const std::string& container : wire::bytes_of(reply.message, 1)) {
        Granted& granted = all.emplace_back();
        for (const std::string& entry : wire::bytes_of(container, 1)) {
            granted.environment[string_of(entry, 1)] = string_of(entry, 2);
        }
        for (const std::string& mount : wire::bytes_of(container, 2)) {
            granted.mounts.push_back({string_of(mount, 1), string_of(mount, 2), flag_of(mount, 3)});
        }
    }
    return all;
}

PluginClient::Reply PluginClient::preferred(const Strings& available, const Strings& must_include,
                                            std::uint64_t size) {
    std::string container;
    for (const std::string& id : available) container += wire::bytes_field(1, id);
    for (const std::string& id : must_include) container += wire::bytes_field(2, id);
    container += wire::number_field(3, size);
    return call("GetPreferredAllocation", wire::bytes_field(1, container));
}

Strings PluginClient::preferred_of(const Reply& reply) {
    return wire::bytes_of(string_of(reply.message, 1), 1);
}

struct DeviceStream::Call {
    std::shared_ptr<grpc::Channel> channel;
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
    bool reads = true;
    mutable std::mutex mutex;
    mutable std::condition_variable changed;
    Health last;
    bool has_ended = false;
    std::thread thread;

    void read_all();
};

void DeviceStream::Call::read_all() {
    for (;;) {
        grpc::ByteBuffer buffer;
        stream->Read(&buffer, nullptr);
        const bool ok = next_is_ok(queue);
        const std::scoped_lock lock(mutex);
        changed.notify_all();
        has_ended = !ok;
        if (!ok) return;
        last.clear();
        for (const std::string& device : wire::bytes_of(text_of(buffer), 1)) {
            last[string_of(device, 1)] = string_of(device, 2);
        }
    }
}

DeviceStream::DeviceStream(const std::string& socket, bool reads)
    : call_(std::make_unique<Call>()) {
    call_->channel = channel_to(socket);
    call_->reads = reads;
    grpc::GenericStub stub(call_->channel);
    call_->stream =
        stub.PrepareCall(&call_->context, "/v1beta1.DevicePlugin/ListAndWatch", &call_->queue);
    call_->stream->StartCall(nullptr);
    if (next_is_ok(call_->queue)) {
        call_->stream->Write(buffer_of(""), nullptr);
        next_is_ok(call_->queue);
        call_->stream->WritesDone(nullptr);
        next_is_ok(call_->queue);
    }
    if (reads) call_->thread = std::thread([this] { call_->read_all(); });
}

DeviceStream::~DeviceStream() {
    call_->context.TryCancel();
    if (call_->thread.joinable()) call_->thread.join();
    grpc::Status status;
    call_->stream->Finish(&status, nullptr);
    next_is_ok(call_->queue);
    empty_queue(call_->queue);
}

bool DeviceStream::becomes(const Health& wanted) const {
    std::unique_lock lock(call_->mutex);
    return call_->changed.wait_for(lock, kKubeletTimeout, [&] { return call_->last == wanted; });
}

Health DeviceStream::last() const {
    const std::scoped_lock lock(call_->mutex);
    return call_->last;
}

bool DeviceStream::ends() const {
    std::unique_lock lock(call_->mutex);
    return call_->changed.wait_for(lock, kKubeletTimeout, [&] { return call_->has_ended; });
}

}  // namespace test_support
