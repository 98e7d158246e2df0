#include "fabricd/http/http_server.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cstring>
#include <functional>
#include <list>
#include <optional>
#include <thread>

#include "libfabricshm/base/host_port.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using asio::local::stream_protocol;
using boost::system::error_code;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::explain;
using fabricshm::Result;

namespace {

constexpr std::uint32_t kHeaderBytesMax = 8 * 1024;
constexpr int kListenBacklog = 64;
// When connections can't be taken (no descriptors left, say) the next attempt is so much later.
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::string_view kUnixPrefix = "unix:";
constexpr const char* kTokenHeader = "X-Fabric-Token";

/// What has a place among the connections.
class Client {
  public:
    Client() = default;
    virtual ~Client() = default;
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    virtual void close_now() noexcept = 0;
};
using Clients = std::list<Client*>;

// All of it belongs to the server's thread once that runs.
struct Shared {
    HttpServerOptions options;
    HttpPages& pages;
    Clients strangers;  // the one without progress for the longest first
    Clients known;

    /// False: all are taken, by clients that keep theirs.
    bool make_place() {
        if (strangers.size() + known.size() < options.connections) return true;
        if (strangers.empty()) return false;
        Client* const first = strangers.front();
        strangers.pop_front();
        first->close_now();
        return true;
    }
};

using Answer = http::response<http::span_body<const char>>;

std::string_view view_of(beast::string_view text) {
    return {text.data(), text.size()};
}

HttpRequest request_of(const http::request<http::empty_body>& header) {
    HttpRequest request;
    const std::string_view target = view_of(header.target());
    const std::size_t mark = std::min(target.find('?'), target.size());
    request.method = view_of(header.method_string());
    request.path = target.substr(0, mark);
    if (mark < target.size()) request.query = target.substr(mark + 1);
    // Of two it could not be said which one a server before this one went by.
    if (header.count(http::field::host) == 1) request.host = view_of(header[http::field::host]);
    request.token = view_of(header[kTokenHeader]);
    return request;
}

/// It lives as long as something of it is under way.
template <typename Protocol>
class Connection : public Client, public std::enable_shared_from_this<Connection<Protocol>> {
  public:
    Connection(typename Protocol::socket socket, Shared& shared)
        : stream_(std::move(socket)),
          shared_(shared),
          place_(shared.strangers.insert(shared.strangers.end(), this)) {}
    ~Connection() override {
        if (has_place_) (is_known_ ? shared_.known : shared_.strangers).erase(place_);
    }

    // Another one has the place. What is under way ends with an error.
    void close_now() noexcept override {
        has_place_ = false;
        stream_.close();
    }

    // The first byte may take its time; the header that it begins may not.
    void wait_for_request() {
        parser_.emplace();
        parser_->header_limit(kHeaderBytesMax);
        if (buffer_.size() != 0) return read_header();
        // A client that has not asked yet is none: places are few, and any user of the host has a
        // way to them.
        stream_.expires_after(has_asked_ ? shared_.options.idle_time : shared_.options.header_time);
        stream_.async_read_some(buffer_.prepare(1),
                                [self = this->shared_from_this()](error_code bad, std::size_t got) {
                                    if (bad) return;
                                    self->buffer_.commit(got);
                                    self->read_header();
                                });
    }

  private:
    void read_header() {
        stream_.expires_after(shared_.options.header_time);
        http::async_read_header(
            stream_, buffer_, *parser_,
            [self = this->shared_from_this()](error_code bad, std::size_t) {
                if (!bad) return self->answer();
                if (!self->has_place_) return;
                if (bad == beast::error::timeout || bad == http::error::end_of_stream) {
                    return;
                }
                // A header too long, or no HTTP: nothing behind it is a
                // request.
                self->is_last_ = true;
                self->send({400, "", nullptr, {}}, 11);
            });
    }

    void answer() {
        has_asked_ = true;
        const auto& header = parser_->get();
        is_last_ = !header.keep_alive();
        if (parser_->chunked() || parser_->content_length().value_or(0) != 0) {
            is_last_ = true;  // what follows is no request
            return send({413, "", nullptr, {}}, header.version());
        }
        const bool is_head = header.method() == http::verb::head;
        HttpAnswer given = shared_.pages.answer(request_of(header));
        if (given.is_known && has_place_ && !is_known_) {
            is_known_ = true;
            shared_.known.splice(shared_.known.end(), shared_.strangers, place_);
        }
        send(std::move(given), header.version(), is_head);
    }

    void send(HttpAnswer given, unsigned version, bool is_head = false) {
        body_ = std::move(given.body);
        answer_.emplace(http::int_to_status(given.status), version);
        if (!given.type.empty()) answer_->set(http::field::content_type, given.type);
        for (const auto& [name, value] : given.headers) answer_->set(name, value);
        const std::size_t bytes = body_ != nullptr ? body_->size() : 0;
        // 304 has no body, and no length of one.
        if (given.status != 304) answer_->content_length(bytes);
        if (bytes != 0 && !is_head) answer_->body() = {body_->data(), bytes};
        answer_->keep_alive(!is_last_);
        serializer_.emplace(*answer_);
        stream_.expires_after(shared_.options.answer_time);
        http::async_write(stream_, *serializer_,
                          [self = this->shared_from_this()](error_code bad, std::size_t) {
                              self->serializer_.reset();
                              self->answer_.reset();
                              self->body_.reset();
                              if (!self->has_place_) return;
                              if (bad || self->is_last_) return self->close();
                              self->note_progress();
                              self->wait_for_request();
                          });
    }

    void note_progress() {
        Clients& mine = is_known_ ? shared_.known : shared_.strangers;
        mine.splice(mine.end(), mine, place_);
    }

    void close() {
        error_code ignored;
        stream_.socket().shutdown(Protocol::socket::shutdown_both, ignored);
    }

    beast::basic_stream<Protocol> stream_;
    Shared& shared_;
    beast::flat_static_buffer<kHeaderBytesMax + 1024> buffer_;
    std::optional<http::request_parser<http::empty_body>> parser_;
    std::shared_ptr<const std::string> body_;  // of answer_, which only points to it
    std::optional<Answer> answer_;
    std::optional<http::response_serializer<http::span_body<const char>>> serializer_;
    Clients::iterator place_;  // in the strangers or the known ones of shared_
    bool has_place_ = true;
    bool is_known_ = false;
    bool has_asked_ = false;
    bool is_last_ = false;
};

/// Takes connections of one kind and gives each to a Connection.
template <typename Protocol>
class Listener {
  public:
    Listener(asio::io_context& context, Shared& shared)
        : acceptor_(context), pause_(context), shared_(shared) {}

    error_code bind(const typename Protocol::endpoint& endpoint) {
        error_code bad;
        acceptor_.open(endpoint.protocol(), bad);
        if constexpr (std::is_same_v<Protocol, tcp>) {
            if (!bad) acceptor_.set_option(tcp::acceptor::reuse_address(true), bad);
        }
        if (!bad) acceptor_.bind(endpoint, bad);
        return bad;
    }
    error_code listen() {
        error_code bad;
        acceptor_.listen(kListenBacklog, bad);
        if (!bad) accept();
        return bad;
    }
    typename Protocol::endpoint endpoint() const {
        error_code ignored;
        return acceptor_.local_endpoint(ignored);
    }

  private:
    void accept() {
        acceptor_.async_accept([this](error_code bad, typename Protocol::socket socket) {
            if (bad == asio::error::operation_aborted) return;
            if (!bad) {
                if (shared_.make_place()) {
                    std::make_shared<Connection<Protocol>>(std::move(socket), shared_)
                        ->wait_for_request();
                }
                return accept();
            }
            pause_.expires_after(kAcceptPause);
            pause_.async_wait([this](error_code ended) {
                if (!ended) accept();
            });
        });
    }

    typename Protocol::acceptor acceptor_;
    asio::steady_timer pause_;
    Shared& shared_;
};

std::optional<tcp::endpoint> parse_endpoint(std::string_view text) {
    const auto place = fabricshm::parse_host_port(text);
    if (!place) return std::nullopt;
    error_code bad;
    const auto address = asio::ip::make_address(place->host, bad);
    if (bad) return std::nullopt;
    return tcp::endpoint(address, place->port);
}

Error bind_error(const error_code& bad, const std::string& listen) {
    if (bad == boost::system::errc::address_in_use) {
        return explain({Errc::kExists, 0, "listen"}, "%s is taken", listen.c_str());
    }
    return explain({Errc::kSystem, bad.value(), "listen"}, "%s: %s", listen.c_str(),
                   bad.message().c_str());
}

}  // namespace

struct HttpServer::Impl {
    Impl(const HttpServerOptions& options, HttpPages& pages)
        : shared{options, pages, {}, {}}, by_tcp(context, shared), by_path(context, shared) {}

    Result<void> listen();
    Result<void> listen_at_path(const std::string& path);

    Shared shared;  // before the context: handlers that are left go with that and refer to this
    asio::io_context context{1};
    Listener<tcp> by_tcp;
    Listener<stream_protocol> by_path;
    std::string path;  // of the unix socket; "": none
    std::uint16_t port = 0;
    std::thread thread;
};

// A path that is there is left alone, even when it is a socket that nothing listens at: it may be
// another's, and a message helps more than a guess.
Result<void> HttpServer::Impl::listen_at_path(const std::string& wanted) {
    if (wanted.empty() || wanted.size() >= sizeof(sockaddr_un{}.sun_path)) {
        return explain({Errc::kInvalid, 0, "listen"}, "unix: takes a path of 1 to %zu bytes",
                       sizeof(sockaddr_un{}.sun_path) - 1);
    }
    // Closed to other users from its first moment on: bind() makes it with the mode of the mask.
    const mode_t before = ::umask(0177);
    const error_code bad = by_path.bind(stream_protocol::endpoint(wanted));
    ::umask(before);
    if (bad) return bind_error(bad, wanted);
    path = wanted;
    if (const error_code deaf = by_path.listen()) return bind_error(deaf, wanted);
    return {};
}

Result<void> HttpServer::Impl::listen() {
    const std::string& place = shared.options.listen;
    if (place.starts_with(kUnixPrefix)) return listen_at_path(place.substr(kUnixPrefix.size()));
    const auto endpoint = parse_endpoint(place);
    if (!endpoint) {
        return explain({Errc::kInvalid, 0, "listen"},
                       "'%s' is neither a numeric address and a port nor unix:PATH", place.c_str());
    }
    if (!endpoint->address().is_loopback()) {
        return explain({Errc::kDenied, 0, "listen"},
                       "%s can be reached from other hosts, and nothing here is encrypted: listen "
                       "at 127.0.0.1 and go there by ssh -L, or at unix:PATH behind a web server",
                       place.c_str());
    }
    if (const error_code bad = by_tcp.bind(*endpoint)) return bind_error(bad, place);
    if (const error_code bad = by_tcp.listen()) return bind_error(bad, place);
    port = by_tcp.endpoint().port();
    return {};
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpServerOptions& options,
                                                      HttpPages& pages) {
    std::unique_ptr<HttpServer> server(new HttpServer(std::make_unique<Impl>(options, pages)));
    FABRIC_TRY_VOID(server->impl_->listen());
    server->impl_->thread = std::thread([&context = server->impl_->context] { context.run(); });
    return server;
}

HttpServer::~HttpServer() {
    impl_->context.stop();
    if (impl_->thread.joinable()) impl_->thread.join();
    if (!impl_->path.empty()) ::unlink(impl_->path.c_str());
}

std::uint16_t HttpServer::port() const noexcept {
    return impl_->port;
}

}  // namespace fabricd
