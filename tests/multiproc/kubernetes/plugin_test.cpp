// fabricd-device-plugin between a real fabricd and a fake kubelet. docs/kubernetes.md.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "tests/multiproc/fabricd/ready.hpp"
#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/fake_kubelet.hpp"
#include "tests/support/program.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace test_support;

namespace {

// Numbers of gRPC's status codes.
constexpr int kInvalidArgument = 3;
constexpr int kUnavailable = 14;

const Health kThreeHealthy{{"gib-0", "Healthy"}, {"gib-1", "Healthy"}, {"gib-2", "Healthy"}};
const Health kThreeUnhealthy{
    {"gib-0", "Unhealthy"}, {"gib-1", "Unhealthy"}, {"gib-2", "Unhealthy"}};

/// The plugin as a child process, whose standard error is kept.
class PluginProcess {
  public:
    explicit PluginProcess(std::vector<std::string> options, std::string log_file)
        : log_file_(std::move(log_file)), words_{DEVICE_PLUGIN_PATH} {
        words_.insert(words_.end(), options.begin(), options.end());
        for (std::string& word : words_) pointers_.push_back(word.data());
        pointers_.push_back(nullptr);
        // There are threads of gRPC: nothing but system calls between fork() and exec().
        child_.emplace([&] {
            const int log = ::open(log_file_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
            ::dup2(log, STDERR_FILENO);
            ::execv(pointers_[0], pointers_.data());
            return 127;
        });
    }

    pid_t pid() const { return child_->pid(); }
    int end(int signal) {
        ::kill(child_->pid(), signal);
        return child_->wait();
    }
    void kill() { child_->kill(); }
    int wait() { return child_->wait(); }
    std::string log() const {
        std::ifstream file(log_file_);
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }
    bool says(const std::string& part) const {
        return becomes_true([&] { return has(log(), part); });
    }

  private:
    std::string log_file_;
    std::vector<std::string> words_;
    std::vector<char*> pointers_;
    std::optional<Child> child_;
};

/// A host: a daemon, a kubelet's folder, and a plugin once it is started.
struct Node {
    TemporaryDirectory folder;
    std::optional<ReadyDaemon> daemon;
    std::string plugins = folder.file("plugins");
    std::string run = folder.file("run");  // a link to the daemon's folder
    FakeKubelet kubelet{plugins};
    std::string endpoint = plugins + "/fabricshm-pool-gib.sock";
    std::optional<PluginProcess> plugin;

    explicit Node(const char* capacity = "3GiB") {
        std::filesystem::create_directory(plugins);
        start_daemon(capacity);
    }
    void start_daemon(const char* capacity) {
        daemon.reset();
        daemon.emplace(std::vector<std::string>{std::string("--pool-capacity=") + capacity});
        std::filesystem::remove(run);
        std::filesystem::create_directory_symlink(daemon->folder(), run);
    }
    std::vector<std::string> options() const {
        return {"--plugin-folder=" + plugins, "--socket=" + run + "/attach.sock",
                "--admin-socket=" + run + "/admin.sock", "--poll=100ms"};
    }
    void start_plugin(const std::vector<std::string>& more = {}) {
        std::vector<std::string> all = options();
        all.insert(all.end(), more.begin(), more.end());
        plugin.emplace(all, folder.file("log"));
    }
    void start_all() {
        kubelet.start();
        start_plugin();
        REQUIRE(kubelet.await_registrations(1));
    }
};

sockaddr_un address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size());
    return address;
}

// The file stays when it is closed.
void leave_dead_socket(const std::string& path) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un address = address_of(path);
    REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    ::close(fd);
}

// From a peer that speaks no gRPC.
void send_garbage(const std::string& path) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un address = address_of(path);
    REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    const std::string garbage(4096, '\xfe');
    (void)::send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
    ::close(fd);
}

}  // namespace

TEST_SUITE("kubernetes.plugin") {
    TEST_CASE("a plugin registers, lists each GiB, and gives containers what opens an arena") {
        Node node;
        node.start_all();
        const Registered registered = node.kubelet.registrations().front();
        CHECK(registered.version == "v1beta1");
        CHECK(registered.endpoint == "fabricshm-pool-gib.sock");
        CHECK(registered.resource == "fabricshm.dev/pool-gib");
        CHECK(registered.prefers);
        CHECK_FALSE(registered.pre_start);
        struct stat status {};
        REQUIRE(::stat(node.endpoint.c_str(), &status) == 0);
        CHECK((status.st_mode & 07777) == 0600);

        const DeviceStream stream(node.endpoint);
        CHECK(stream.becomes(kThreeHealthy));
        PluginClient client(node.endpoint);
        CHECK(client.call("GetDevicePluginOptions", "").message == wire::number_field(2, 1));
        const auto preferred = client.preferred({"gib-2", "gib-1", "gib-0"}, {"gib-2"}, 2);
        CHECK(PluginClient::preferred_of(preferred) == Strings{"gib-2", "gib-0"});
        CHECK(client.call("PreStartContainer", wire::bytes_field(1, "gib-1")).code == 0);

        const auto reply = client.allocate({{"gib-0", "gib-2"}, {"gib-1"}});
        REQUIRE_MESSAGE(reply.code == 0, reply.text);
        const auto granted = PluginClient::granted_of(reply);
        REQUIRE(granted.size() == 2);
        auto environment = granted[0].environment;
        CHECK(environment.size() == 3);
        CHECK(environment["FABRIC_SOCKET"] == node.run + "/attach.sock");
        CHECK(environment["FABRIC_ARENA_BYTES"] == "2147483648");
        CHECK(environment["FABRIC_ARENA"].starts_with("k8s-"));
        CHECK(environment["FABRIC_ARENA"] != granted[1].environment.at("FABRIC_ARENA"));
        CHECK(granted[1].environment.at("FABRIC_ARENA_BYTES") == "1073741824");
        REQUIRE(granted[0].mounts.size() == 1);
        CHECK(granted[0].mounts[0].host_path == node.run);
        CHECK(granted[0].mounts[0].container_path == node.run);
        CHECK(granted[0].mounts[0].read_only);

        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = environment["FABRIC_SOCKET"].c_str();
        fabricshm_session* session = nullptr;
        REQUIRE(fabricshm_session_open(&options, &session) == 0);
        fabricshm_arena* arena = nullptr;
        const auto bytes = std::stoull(environment["FABRIC_ARENA_BYTES"]);
        CHECK(fabricshm_arena_open(session, environment["FABRIC_ARENA"].c_str(), bytes, 0,
                                   &arena) == 0);
        CHECK(fabricshm_arena_bytes(arena) == bytes);
        fabricshm_session_close(session);
    }

    TEST_CASE("what --reserve keeps is not offered") {
        Node node;
        node.kubelet.start();
        node.start_plugin({"--reserve=1025MiB", "--socket=" + node.run + "/pods/attach.sock"});
        REQUIRE(node.kubelet.await_registrations(1));
        const DeviceStream stream(node.endpoint);
        CHECK(stream.becomes({{"gib-0", "Healthy"}}));
        CHECK(node.plugin->says("offers 1 GiB of a pool of 3 GiB with --reserve 1 GiB"));
        // The admin socket is not in the folder that containers get.
        CHECK_FALSE(has(node.plugin->log(), "admin socket"));
    }

    TEST_CASE("requests that no kubelet sends are errors, and the next one is served") {
        Node node;
        node.start_all();
        const DeviceStream stream(node.endpoint);
        REQUIRE(stream.becomes(kThreeHealthy));
        PluginClient client(node.endpoint);
        for (const char* id : {"gib-3", "gib-", "gib-01", "gib--1", "gib-0 ", "GIB-0", "",
                               "gib-4294967296", "gib-99999999999999999999", "\n\x01%s%n"}) {
            const auto reply = client.allocate({Strings{"gib-0", id}});
            CHECK(reply.code == kInvalidArgument);
            CHECK_MESSAGE(has(reply.text, "no device '"), reply.text);
        }
        CHECK(client.allocate({{}}).code == kInvalidArgument);
        CHECK(client.allocate({{"gib-0", "gib-0"}}).code == kInvalidArgument);
        CHECK(client.allocate({{"gib-0"}, {"gib-0"}}).code == kInvalidArgument);
        CHECK(client.allocate({Strings(100'000, "gib-1")}).code == kInvalidArgument);
        // A quarter of a million containers that want nothing, and a message above the limit.
        CHECK(client.allocate(std::vector<Strings>(250'000)).code == kInvalidArgument);
        CHECK(client.allocate({{std::string(5 << 20, 'x')}}).code != 0);
        CHECK(client.preferred({"gib-0"}, {}, 2).code == kInvalidArgument);
        CHECK(client.preferred({"gib-0"}, {"gib-1"}, 1).code == kInvalidArgument);
        CHECK(client.preferred({"gib-0", "gib-1"}, {}, ~0ULL).code == kInvalidArgument);
        CHECK(client.call("PreStartContainer", wire::bytes_field(1, "x")).code == kInvalidArgument);
        for (const char* method : {"Allocate", "GetPreferredAllocation", "PreStartContainer"}) {
            CHECK(client.call(method, "\xff\xff\xff\xff\xff").code != 0);
        }
        CHECK(client.call("Steal", "").code != 0);
        for (int i = 0; i < 20; ++i) send_garbage(node.endpoint);
        CHECK(client.allocate({{"gib-0"}}).code == 0);
    }

    TEST_CASE("streams of peers that never read are ended for newer ones") {
        Node node;
        node.start_all();
        std::vector<std::unique_ptr<DeviceStream>> silent;
        for (int i = 0; i < 20; ++i) {
            silent.push_back(std::make_unique<DeviceStream>(node.endpoint, false));
        }
        const DeviceStream stream(node.endpoint);
        CHECK(stream.becomes(kThreeHealthy));
        CHECK(node.plugin->end(SIGTERM) == 0);
        CHECK(stream.ends());
    }

    TEST_CASE("devices are unhealthy while the daemon is away, and those that it backs come back") {
        Node node;
        node.start_all();
        const DeviceStream stream(node.endpoint);
        REQUIRE(stream.becomes(kThreeHealthy));
        PluginClient client(node.endpoint);

        node.daemon->kill();
        CHECK(stream.becomes(kThreeUnhealthy));
        const auto refused = client.allocate({{"gib-0"}});
        CHECK(refused.code == kUnavailable);
        CHECK(has(refused.text, "gib-0"));

        node.start_daemon("2GiB");
        CHECK(stream.becomes({{"gib-0", "Healthy"}, {"gib-1", "Healthy"}, {"gib-2", "Unhealthy"}}));
        CHECK(client.allocate({{"gib-0", "gib-1"}}).code == 0);
        CHECK(client.allocate({{"gib-2"}}).code == kUnavailable);

        node.start_daemon("3GiB");
        CHECK(stream.becomes(kThreeHealthy));

        // One that stands still takes connections and says nothing.
        ::kill(node.daemon->pid(), SIGSTOP);
        CHECK(stream.becomes(kThreeUnhealthy));
        ::kill(node.daemon->pid(), SIGCONT);
        CHECK(stream.becomes(kThreeHealthy));
    }

    TEST_CASE("a plugin without a daemon registers with no devices and waits for one") {
        Node node;
        node.daemon->stop();
        node.start_all();
        const DeviceStream stream(node.endpoint);
        CHECK(node.plugin->says("no fabricd at"));
        CHECK(stream.last().empty());
        node.start_daemon("3GiB");
        CHECK(stream.becomes(kThreeHealthy));
    }

    TEST_CASE("a kubelet that starts again gets the socket and the registration again") {
        Node node;
        node.start_plugin();
        CHECK(node.plugin->says("waits for a kubelet"));
        for (std::size_t start = 1; start <= 3; ++start) {
            node.kubelet.start();
            REQUIRE(node.kubelet.await_registrations(start));
            const DeviceStream stream(node.endpoint);
            CHECK(stream.becomes(kThreeHealthy));
            node.kubelet.stop();
        }
    }

    TEST_CASE("a kubelet that lost the plugin, or refuses it, is asked again") {
        Node node;
        node.kubelet.refuse_with("requested API version\n is not supported");
        node.start_all();
        CHECK(node.plugin->says("the kubelet refuses: requested API version  is not supported\n"));
        node.kubelet.refuse_with("");
        CHECK(node.plugin->says("registered fabricshm.dev/pool-gib"));
        // It opens no stream.
        const std::size_t count = node.kubelet.registrations().size();
        CHECK(node.kubelet.await_registrations(count + 1));
    }

    TEST_CASE("sockets that are removed or that none listens on are made and asked again") {
        Node node;
        // As a killed kubelet leaves it.
        leave_dead_socket(node.plugins + "/kubelet.sock");
        node.start_plugin();
        CHECK(node.plugin->says("no kubelet answers at"));
        node.kubelet.start();
        REQUIRE(node.kubelet.await_registrations(1));
        const DeviceStream before(node.endpoint);
        REQUIRE(before.becomes(kThreeHealthy));
        std::filesystem::remove(node.endpoint);
        CHECK(node.plugin->says("the socket was removed; making it again"));
        REQUIRE(becomes_true([&] { return std::filesystem::exists(node.endpoint); }));
        CHECK(PluginClient(node.endpoint).call("GetDevicePluginOptions", "").code == 0);
        // The kubelet that has us needs no other registration.
        node.daemon->kill();
        CHECK(before.becomes(kThreeUnhealthy));
        CHECK(node.kubelet.registrations().size() == 1);
    }

    TEST_CASE("a folder that is made again has one plugin as well") {
        Node node;
        node.start_plugin();
        CHECK(node.plugin->says("waits for a kubelet"));
        std::filesystem::remove_all(node.plugins);
        CHECK(node.plugin->says("(--plugin-folder): No such file or directory"));
        std::filesystem::create_directory(node.plugins);
        REQUIRE(becomes_true([&] { return std::filesystem::exists(node.endpoint); }));
        auto words = node.options();
        words.insert(words.begin(), DEVICE_PLUGIN_PATH);
        CHECK(run_program(words).code == 1);
        CHECK(PluginClient(node.endpoint).call("GetDevicePluginOptions", "").code == 0);
    }

    TEST_CASE("SIGTERM and SIGINT end a plugin with 0, and its socket goes with it") {
        Node node;
        for (const int signal : {SIGTERM, SIGINT}) {
            node.start_plugin();
            REQUIRE(becomes_true([&] { return std::filesystem::exists(node.endpoint); }));
            CHECK(node.plugin->says("offers 3 GiB of a pool of 3 GiB"));
            CHECK(has(node.plugin->log(), "has fabricd's admin socket in it"));
            CHECK(node.plugin->end(signal) == 0);
            CHECK_FALSE(std::filesystem::exists(node.endpoint));
        }
    }

    TEST_CASE("a second plugin ends with one line, and a killed one leaves the place free") {
        Node node;
        node.start_all();
        auto words = node.options();
        words.insert(words.begin(), DEVICE_PLUGIN_PATH);
        const Output second = run_program(words);
        CHECK(second.code == 1);
        CHECK(second.error == "fabricd-device-plugin: another fabricd-device-plugin serves " +
                                  node.plugins + " (--plugin-folder)\n");
        CHECK(PluginClient(node.endpoint).call("GetDevicePluginOptions", "").code == 0);

        node.plugin->kill();
        CHECK(std::filesystem::exists(node.endpoint));
        const std::size_t count = node.kubelet.registrations().size();
        node.start_plugin();
        REQUIRE(node.kubelet.await_registrations(count + 1));
        const DeviceStream stream(node.endpoint);
        CHECK(stream.becomes(kThreeHealthy));
    }

    TEST_CASE("a file in the place of the socket is left alone and named") {
        Node node;
        std::ofstream(node.endpoint) << "data";
        auto words = node.options();
        words.insert(words.begin(), DEVICE_PLUGIN_PATH);
        const Output output = run_program(words);
        CHECK(output.code == 1);
        CHECK(output.error ==
              "fabricd-device-plugin: " + node.endpoint + " is there and no socket\n");
        CHECK(std::filesystem::file_size(node.endpoint) == 4);
    }
}
