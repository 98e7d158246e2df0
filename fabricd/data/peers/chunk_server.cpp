#include "fabricd/data/peers/chunk_server.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "libfabricshm/base/host_port.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr std::uint32_t kHeaderBytes = 8 * 1024;
constexpr std::chrono::milliseconds kBetweenLooks{4};  // for a chunk that is on its way

// What the threads that ask for numbers and the server's own share. Counts alone: nothing is
// concluded from one about another, so relaxed is enough.
struct Counts {
    std::atomic<std::uint64_t> served{0}, missing{0}, refused{0};
};

struct Shared {
    ChunkServerOptions options;
    ChunkSource& source;
    Counts counts;
    unsigned open = 0;  // connections; of the server's thread
};

using Answer = http::response<http::vector_body<std::uint8_t>>;

Answer plain_answer(http::status status, unsigned version) {
    Answer answer(status, version);
    answer.content_length(0);
    return answer;
}

// Of a connection, plain or by TLS. It lives as long as something of it is under way.
template <typename Stream>
class Connection : public std::enable_shared_from_this<Connection<Stream>> {
  public:
    Connection(Stream stream, Shared& shared)
        : stream_(std::move(stream)), timer_(stream_.get_executor()), shared_(shared) {
        ++shared_.open;
    }
    ~Connection() { --shared_.open; }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    void begin() {
        if constexpr (kIsTls) {
            lowest().expires_after(shared_.options.header_time);
            stream_.async_handshake(asio::ssl::stream_base::server,
                                    [self = this->shared_from_this()](error_code bad) {
                                        if (!bad) self->wait_for_request();
                                    });
        } else {
            wait_for_request();
        }
    }

  private:
    static constexpr bool kIsTls = !std::is_same_v<Stream, beast::tcp_stream>;

    beast::tcp_stream& lowest() { return beast::get_lowest_layer(stream_); }

    // The first byte may take its time; the header it begins may not.
    void wait_for_request() {
        parser_.emplace();
        parser_->header_limit(kHeaderBytes);
        if (buffer_.size() != 0) return read_header();
        lowest().expires_after(shared_.options.idle_time);
        stream_.async_read_some(buffer_.prepare(1),
                                [self = this->shared_from_this()](error_code bad, std::size_t got) {
                                    if (bad) return;
                                    self->buffer_.commit(got);
                                    self->read_header();
                                });
    }

    void read_header() {
        lowest().expires_after(shared_.options.header_time);
        http::async_read_header(
            stream_, buffer_, *parser_,
            [self = this->shared_from_this()](error_code bad, std::size_t) {
                if (!bad) return self->answer();
                if (bad == beast::error::timeout || bad == http::error::end_of_stream) {
                    return;
                }
                // A header too long, or no HTTP.
                ++self->shared_.counts.refused;
                self->is_last_ = true;
                self->send(plain_answer(http::status::bad_request, 11));
            });
    }

    void answer() {
        const auto& request = parser_->get();
        is_last_ = !request.keep_alive();
        const std::string_view target(request.target().data(), request.target().size());
        const bool has_body = parser_->chunked() || parser_->content_length().value_or(0) != 0;
        const bool is_get = request.method() == http::verb::get && !has_body;
        const auto name = is_get ? parse_chunk_target(target) : std::nullopt;
        if (!name) {
            ++shared_.counts.refused;
            is_last_ = is_last_ || has_body;  // what follows is no request
            return send(plain_answer(http::status::bad_request, request.version()));
        }
        look_for(*name, std::chrono::steady_clock::now() + shared_.options.coming_time);
    }

    void look_for(const ChunkName& name, std::chrono::steady_clock::time_point until) {
        const auto chunk = shared_.source.find(name);
        if (chunk && !chunk->bytes.empty()) return send_chunk(name, *chunk);
        if (!chunk || std::chrono::steady_clock::now() >= until) {
            ++shared_.counts.missing;
            return send(plain_answer(http::status::not_found, parser_->get().version()));
        }
        timer_.expires_after(kBetweenLooks);
        timer_.async_wait([self = this->shared_from_this(), name, until](error_code bad) {
            if (!bad) self->look_for(name, until);
        });
    }

    void send_chunk(const ChunkName& name, const ChunkSource::Chunk& chunk) {
        ++shared_.counts.served;
        // As the answer to a request for a part, since what is asked for is one of a file.
        Answer answer(http::status::partial_content, parser_->get().version());
        const std::string bytes = std::to_string(chunk.bytes.size());
        answer.set(http::field::etag, '"' + version_text(name.version) + '"');
        answer.set(http::field::content_range,
                   "bytes 0-" + std::to_string(chunk.bytes.size() - 1) + "/" + bytes);
        answer.set(kPeerChecksum, checksum_text(chunk.checksum));
        const auto* const first = reinterpret_cast<const std::uint8_t*>(chunk.bytes.data());
        answer.body().assign(first, first + chunk.bytes.size());
        answer.prepare_payload();
        send(std::move(answer));
    }

    void send(Answer answer) {
        answer_ = std::move(answer);
        answer_->keep_alive(!is_last_);
        lowest().expires_after(shared_.options.answer_time);
        http::async_write(stream_, *answer_,
                          [self = this->shared_from_this()](error_code bad, std::size_t) {
                              self->answer_.reset();
                              if (bad || self->is_last_) return self->close();
                              self->wait_for_request();
                          });
    }

    void close() {
        error_code ignored;
        lowest().socket().shutdown(tcp::socket::shutdown_both, ignored);
    }

    Stream stream_;
    asio::steady_timer timer_;
    Shared& shared_;
    beast::flat_static_buffer<kHeaderBytes + 1024> buffer_;
    std::optional<http::request_parser<http::empty_body>> parser_;
    std::optional<Answer> answer_;
    bool is_last_ = false;
};

using PlainConnection = Connection<beast::tcp_stream>;
using TlsConnection = Connection<beast::ssl_stream<beast::tcp_stream>>;

Result<void> set_trust(asio::ssl::context& context, const PeerTrust& trust) {
    const auto wrong = [](const std::string& file, const error_code& bad) {
        return explain({Errc::kInvalid, 0, "read certificates"}, "%s: %s", file.c_str(),
                       bad.message().c_str());
    };
    error_code bad;
    context.load_verify_file(trust.authority, bad);
    if (bad) return wrong(trust.authority, bad);
    context.use_certificate_chain_file(trust.certificate, bad);
    if (bad) return wrong(trust.certificate, bad);
    context.use_private_key_file(trust.key, asio::ssl::context::pem, bad);
    if (bad) return wrong(trust.key, bad);
    context.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert, bad);
    if (bad) return wrong(trust.authority, bad);
    SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
    return {};
}

}  // namespace

bool is_loopback_address(const std::string& address) {
    error_code bad;
    const auto parsed = asio::ip::make_address(address, bad);
    return !bad && parsed.is_loopback();
}

struct ChunkServer::Impl {
    Impl(const ChunkServerOptions& options, ChunkSource& source)
        : shared{options, source, {}, 0},
          tls(asio::ssl::context::tls_server),
          acceptor(context),
          pause(context) {}

    Result<void> listen();
    void accept();
    void take(tcp::socket socket);

    Shared shared;
    asio::io_context context{1};
    asio::ssl::context tls;
    tcp::acceptor acceptor;
    asio::steady_timer pause;
    std::uint16_t port = 0;
    std::thread thread;
};

Result<void> ChunkServer::Impl::listen() {
    const ChunkServerOptions& options = shared.options;
    const auto place = fabricshm::parse_host_port(options.listen);
    error_code bad;
    const auto address = place ? asio::ip::make_address(place->host, bad) : asio::ip::address();
    if (!place || bad) {
        return explain({Errc::kInvalid, 0, "serve peers"}, "%s is no numeric address and port",
                       options.listen.c_str());
    }
    if (!options.trust.is_set() && !address.is_loopback()) {
        return explain({Errc::kDenied, 0, "serve peers"},
                       "%s can be reached from other hosts: that takes certificates",
                       options.listen.c_str());
    }
    if (options.trust.is_set()) FABRIC_TRY_VOID(set_trust(tls, options.trust));
    const tcp::endpoint endpoint(address, place->port);
    acceptor.open(endpoint.protocol(), bad);
    if (!bad) acceptor.set_option(tcp::acceptor::reuse_address(true), bad);
    if (!bad) acceptor.bind(endpoint, bad);
    if (!bad) acceptor.listen(64, bad);
    if (bad == boost::system::errc::address_in_use) {
        return explain({Errc::kExists, 0, "serve peers"}, "%s is taken", options.listen.c_str());
    }
    if (bad) return Error{Errc::kSystem, bad.value(), "serve peers"};
    port = acceptor.local_endpoint(bad).port();
    return {};
}

void ChunkServer::Impl::accept() {
    acceptor.async_accept([this](error_code bad, tcp::socket socket) {
        if (bad == asio::error::operation_aborted) return;
        if (!bad) {
            take(std::move(socket));
            return accept();
        }
        // No descriptors left, say: not again at once.
        pause.expires_after(std::chrono::milliseconds(100));
        pause.async_wait([this](error_code ended) {
            if (!ended) accept();
        });
    });
}

void ChunkServer::Impl::take(tcp::socket socket) {
    if (shared.open >= shared.options.connections) {
        ++shared.counts.refused;
        return;
    }
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    beast::tcp_stream stream(std::move(socket));
    if (!shared.options.trust.is_set()) {
        std::make_shared<PlainConnection>(std::move(stream), shared)->begin();
        return;
    }
    std::make_shared<TlsConnection>(beast::ssl_stream<beast::tcp_stream>(std::move(stream), tls),
                                    shared)
        ->begin();
}

ChunkServer::ChunkServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<ChunkServer>> ChunkServer::start(const ChunkServerOptions& options,
                                                        ChunkSource& source) {
    auto impl = std::make_unique<Impl>(options, source);
    FABRIC_TRY_VOID(impl->listen());
    impl->accept();
    impl->thread = std::thread([&context = impl->context] { context.run(); });
    return std::unique_ptr<ChunkServer>(new ChunkServer(std::move(impl)));
}

ChunkServer::~ChunkServer() {
    impl_->context.stop();
    impl_->thread.join();
}

std::uint16_t ChunkServer::port() const noexcept {
    return impl_->port;
}

ChunkServer::Stats ChunkServer::stats() const noexcept {
    const auto value = [](const std::atomic<std::uint64_t>& count) {
        return count.load(std::memory_order_relaxed);  // see Counts
    };
    const Counts& counts = impl_->shared.counts;
    return {value(counts.served), value(counts.missing), value(counts.refused)};
}

}  // namespace fabricd
