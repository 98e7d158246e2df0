#include "fabricd/net/etcd_client.hpp"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <utility>

#include "fabricd/net/cluster_config.hpp"
#include "fabricd/net/tls_files.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::explain;
using namespace etcdserverpb;

namespace {

constexpr int kMaxMessage = 16 << 20;  // a thousand hosts with their fences are a tenth of it

enum class Tag : std::intptr_t { kStart = 1, kWrite, kRead, kFinish };
void* tag_of(Tag tag) {
    return reinterpret_cast<void*>(tag);
}

auto system_deadline(Duration length) {
    return std::chrono::system_clock::now() +
           std::chrono::duration_cast<std::chrono::system_clock::duration>(length);
}

// A member without a leader would otherwise keep a stream open and say nothing.
void demand_leader(grpc::ClientContext& context) {
    context.AddMetadata("hasleader", "true");
}

Error error_of(const grpc::Status& status, const char* step) {
    const std::string& text = status.error_message();
    switch (status.error_code()) {
        case grpc::StatusCode::UNAVAILABLE:
        case grpc::StatusCode::DEADLINE_EXCEEDED:
        case grpc::StatusCode::CANCELLED:
            return explain({Errc::kTimeout, 0, step}, "etcd does not answer: %s", text.c_str());
        case grpc::StatusCode::NOT_FOUND:
            return explain({Errc::kNotFound, 0, step}, "etcd: %s", text.c_str());
        case grpc::StatusCode::PERMISSION_DENIED:
        case grpc::StatusCode::UNAUTHENTICATED:
            return explain({Errc::kDenied, 0, step}, "etcd: %s", text.c_str());
        case grpc::StatusCode::RESOURCE_EXHAUSTED:
            return explain({Errc::kNoMemory, 0, step}, "etcd: %s", text.c_str());
        default:
            return explain({Errc::kInvalid, 0, step}, "etcd: %s", text.c_str());
    }
}

bool is_member_fault(const grpc::Status& status) {
    const auto code = status.error_code();
    return code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::DEADLINE_EXCEEDED ||
           code == grpc::StatusCode::CANCELLED || code == grpc::StatusCode::UNKNOWN;
}

// The next event of a queue on which only its caller waits. The context's deadline or TryCancel()
// bounds it.
bool next_ok(grpc::CompletionQueue& queue) {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
}

void drain(grpc::CompletionQueue& queue) {
    queue.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) {
    }
}

}  // namespace

struct EtcdClient::Impl {
    EtcdOptions options;
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    std::size_t current = 0;
    std::uint64_t generation = 1;
    BootTime limit = BootTime::max();

    void wait_for_member(BootTime end) {
        const Duration left =
            std::min<Duration>(end - BootClock::now(), std::chrono::milliseconds(100));
        if (left > Duration::zero()) channels[current]->WaitForConnected(system_deadline(left));
    }

    void leave_member() {
        current = (current + 1) % channels.size();
        ++generation;
    }

    template <typename Request, typename Reply>
    grpc::Status ask_once(const char* method, const Request& request, Reply& reply,
                          Duration limit) {
        grpc::ClientContext context;
        context.set_deadline(system_deadline(limit));
        grpc::CompletionQueue queue;
        grpc::TemplatedGenericStub<Request, Reply> stub(channels[current]);
        auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
        call->StartCall();
        grpc::Status status;
        call->Finish(&reply, &status, tag_of(Tag::kFinish));
        next_ok(queue);
        drain(queue);
        return status;
    }

    // A stream for one question: kept open, it would have to be watched for members that are
    // stopped.
    grpc::Status ask_once(const char* method, const LeaseKeepAliveRequest& request,
                          LeaseKeepAliveResponse& reply, Duration limit) {
        grpc::ClientContext context;
        demand_leader(context);
        context.set_deadline(system_deadline(limit));
        grpc::CompletionQueue queue;
        grpc::TemplatedGenericStub<LeaseKeepAliveRequest, LeaseKeepAliveResponse> stub(
            channels[current]);
        auto stream = stub.PrepareCall(&context, method, &queue);
        stream->StartCall(tag_of(Tag::kStart));
        bool ok = next_ok(queue);
        if (ok) {
            stream->Write(request, tag_of(Tag::kWrite));
            ok = next_ok(queue);
        }
        if (ok) {
            stream->Read(&reply, tag_of(Tag::kRead));
            ok = next_ok(queue);
        }
        grpc::Status status;
        if (ok) {
            context.TryCancel();
        } else {
            stream->Finish(&status, tag_of(Tag::kFinish));
            next_ok(queue);
            if (status.ok()) status = {grpc::StatusCode::UNAVAILABLE, "the stream ended"};
        }
        drain(queue);
        return status;
    }

    template <typename Reply, typename Request>
    Result<Answered<Reply>> ask(const char* method, const Request& request, const char* step) {
        const BootTime end = std::min(BootClock::now() + options.total, limit);
        grpc::Status status;
        for (std::size_t tries = 0;; ++tries) {
            // All of them refused at once: they may be back in a moment.
            if (tries > 0 && tries % channels.size() == 0) wait_for_member(end);
            Answered<Reply> answer;
            answer.sent = BootClock::now();
            // At least every member once, unless their time is over.
            if (tries > 0 && answer.sent >= end) break;
            const Duration left = std::clamp<Duration>(
                end - answer.sent, std::chrono::milliseconds(50), options.attempt);
            status = ask_once(method, request, answer.message, left);
            if (status.ok()) return answer;
            if (!is_member_fault(status)) break;
            leave_member();
        }
        return error_of(status, step);
    }
};

namespace {

/// The credentials of https endpoints; nullptr with the reason in `error`.
std::shared_ptr<grpc::ChannelCredentials> tls_of(const EtcdOptions& options, Error& error) {
    grpc::SslCredentialsOptions tls;
    const struct {
        const char* key;
        const std::string& path;
        const char* content;
        std::string& text;
    } files[] = {{"cluster.tls_ca", options.tls_ca, "CERTIFICATE", tls.pem_root_certs},
                 {"cluster.tls_cert", options.tls_cert, "CERTIFICATE", tls.pem_cert_chain},
                 {"cluster.tls_key", options.tls_key, "PRIVATE KEY", tls.pem_private_key}};
    for (const auto& file : files) {
        auto read = read_pem(file.key, file.path, file.content);
        if (!read.ok()) {
            error = read.error();
            return nullptr;
        }
        file.text = std::move(read).value();
    }
    return grpc::SslCredentials(tls);
}

grpc::ChannelArguments channel_arguments() {
    grpc::ChannelArguments arguments;
    // gRPC waits up to two minutes before it connects to a member again that was gone. The second
    // one is how long an attempt may take, which goes on over several calls: with TLS on a busy
    // machine it needs more than one has.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
    // Of the environment: a proxy for the web is none for etcd.
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetMaxReceiveMessageSize(kMaxMessage);
    return arguments;
}

}  // namespace

Result<std::unique_ptr<EtcdClient>> EtcdClient::make(const EtcdOptions& options) {
    auto impl = std::make_unique<Impl>();
    impl->options = options;
    for (const std::string& endpoint : options.endpoints) {
        bool is_tls = false;
        const std::string target = target_of(endpoint, is_tls);
        if (target.empty()) {
            return explain({Errc::kInvalid, 0, "etcd"},
                           "cluster.etcd: \"%s\" is no http://HOST:PORT or https://HOST:PORT",
                           endpoint.c_str());
        }
        Error error;
        auto credentials = is_tls ? tls_of(options, error) : grpc::InsecureChannelCredentials();
        if (!credentials) return error;
        impl->channels.push_back(
            grpc::CreateCustomChannel(target, credentials, channel_arguments()));
    }
    if (impl->channels.empty()) return Error{Errc::kInvalid, 0, "etcd without endpoints"};
    return std::unique_ptr<EtcdClient>(new EtcdClient(std::move(impl)));
}

EtcdClient::EtcdClient(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
EtcdClient::~EtcdClient() = default;

void EtcdClient::limit_calls_until(BootTime end) noexcept {
    impl_->limit = end;
}

std::uint64_t EtcdClient::generation() const noexcept {
    return impl_->generation;
}

Result<Answered<RangeResponse>> EtcdClient::range(const RangeRequest& request) {
    return impl_->ask<RangeResponse>("/etcdserverpb.KV/Range", request, "read from etcd");
}

Result<Answered<TxnResponse>> EtcdClient::transact(const TxnRequest& request) {
    return impl_->ask<TxnResponse>("/etcdserverpb.KV/Txn", request, "write to etcd");
}

Result<Answered<LeaseGrantResponse>> EtcdClient::grant(const LeaseGrantRequest& request) {
    return impl_->ask<LeaseGrantResponse>("/etcdserverpb.Lease/LeaseGrant", request,
                                          "take a lease of etcd");
}

Result<Answered<LeaseRevokeResponse>> EtcdClient::revoke(const LeaseRevokeRequest& request) {
    return impl_->ask<LeaseRevokeResponse>("/etcdserverpb.Lease/LeaseRevoke", request,
                                           "give up a lease of etcd");
}

Result<Answered<LeaseKeepAliveResponse>> EtcdClient::keep_alive(
    const LeaseKeepAliveRequest& request) {
    return impl_->ask<LeaseKeepAliveResponse>("/etcdserverpb.Lease/LeaseKeepAlive", request,
                                              "renew a lease of etcd");
}

// One read is always under way; what comes is handed out in order.
struct EtcdClient::Watch::Stream {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    std::unique_ptr<grpc::ClientAsyncReaderWriter<WatchRequest, WatchResponse>> calls;
    WatchRequest request;
    WatchResponse response;
    bool has_ended = false;

    // False: it has ended. True with `is_response`: `response` is new.
    bool take(void* tag, bool ok, bool& is_response) {
        has_ended = has_ended || !ok;
        if (has_ended) return false;
        if (tag == tag_of(Tag::kStart)) calls->Write(request, tag_of(Tag::kWrite));
        if (tag == tag_of(Tag::kWrite)) calls->Read(&response, tag_of(Tag::kRead));
        is_response = tag == tag_of(Tag::kRead);
        return true;
    }
};

EtcdClient::Watch::Watch(std::unique_ptr<Stream> stream) noexcept : stream_(std::move(stream)) {}

EtcdClient::Watch::~Watch() {
    stream_->context.TryCancel();
    drain(stream_->queue);
}

Result<WatchResponse> EtcdClient::Watch::next(Duration wait) {
    const auto deadline = system_deadline(wait);
    while (!stream_->has_ended) {
        void* tag = nullptr;
        bool ok = false;
        const auto got = stream_->queue.AsyncNext(&tag, &ok, deadline);
        if (got == grpc::CompletionQueue::TIMEOUT) {
            return Error{Errc::kTimeout, 0, "watch of etcd"};
        }
        bool is_response = false;
        if (got != grpc::CompletionQueue::GOT_EVENT || !stream_->take(tag, ok, is_response)) break;
        if (!is_response) continue;
        WatchResponse response = std::move(stream_->response);
        stream_->response.Clear();
        stream_->calls->Read(&stream_->response, tag_of(Tag::kRead));
        return response;
    }
    return Error{Errc::kDaemon, 0, "watch of etcd"};
}

std::unique_ptr<EtcdClient::Watch> EtcdClient::watch(const WatchRequest& request) {
    auto stream = std::make_unique<Watch::Stream>();
    demand_leader(stream->context);
    grpc::TemplatedGenericStub<WatchRequest, WatchResponse> stub(impl_->channels[impl_->current]);
    stream->request = request;
    stream->calls = stub.PrepareCall(&stream->context, "/etcdserverpb.Watch/Watch", &stream->queue);
    stream->calls->StartCall(tag_of(Tag::kStart));
    return std::unique_ptr<Watch>(new Watch(std::move(stream)));
}

}  // namespace fabricd
