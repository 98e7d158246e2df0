// A kubelet as far as device plugins see one, written from the API's description and apart from the
// plugin: names of methods are spelt out, and messages are put together byte by byte.

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace test_support {

using Strings = std::vector<std::string>;

/// The wire format of protobuf: numbered fields that are numbers or bytes.
namespace wire {
std::string bytes_field(int number, std::string_view bytes);
std::string number_field(int number, std::uint64_t value);
/// The contents of all fields of that number and kind, in order. Ends the test program when the
/// message is malformed.
Strings bytes_of(std::string_view message, int number);
std::vector<std::uint64_t> numbers_of(std::string_view message, int number);
}  // namespace wire

struct Registered {
    std::string version;
    std::string endpoint;
    std::string resource;
    bool prefers = false;  // GetPreferredAllocation is served
    bool pre_start = false;
};

/// The kubelet's half with the server. start() and stop() may be repeated: one that starts removes
/// the sockets in its folder, as the real one does.
class FakeKubelet {
  public:
    explicit FakeKubelet(std::string folder);
    ~FakeKubelet();
    FakeKubelet(const FakeKubelet&) = delete;
    FakeKubelet& operator=(const FakeKubelet&) = delete;

    void start();
    void stop();
    /// Registrations from now on fail with this text; "" lets them succeed.
    void refuse_with(const std::string& text);

    /// Since the first start(), refused ones too.
    std::vector<Registered> registrations() const;
    /// False after 60 s.
    bool await_registrations(std::size_t count) const;

    struct Service;

  private:
    std::string folder_;
    std::unique_ptr<Service> service_;
};

struct Granted {
    std::map<std::string, std::string> environment;
    struct Mount {
        std::string container_path, host_path;
        bool read_only = false;
    };
    std::vector<Mount> mounts;
};

/// The kubelet's half that calls a plugin.
class PluginClient {
  public:
    explicit PluginClient(const std::string& socket);
    ~PluginClient();

    struct Reply {
        int code = -1;  // of gRPC; 0 is fine
        std::string text;
        std::string message;
    };
    /// Of service v1beta1.DevicePlugin. Ten seconds at most.
    Reply call(const std::string& method, const std::string& message);

    Reply allocate(const std::vector<Strings>& containers);
    static std::vector<Granted> granted_of(const Reply& reply);
    Reply preferred(const Strings& available, const Strings& must_include, std::uint64_t size);
    static Strings preferred_of(const Reply& reply);

    struct Channel;

  private:
    std::unique_ptr<Channel> channel_;
};

/// Devices and their health ("Healthy"), as the last message of a stream had them.
using Health = std::map<std::string, std::string>;

/// ListAndWatch.
class DeviceStream {
  public:
    /// `reads`: false for a peer that opens the stream and takes nothing from it.
    explicit DeviceStream(const std::string& socket, bool reads = true);
    ~DeviceStream();
    DeviceStream(const DeviceStream&) = delete;
    DeviceStream& operator=(const DeviceStream&) = delete;

    /// Whether the list becomes this one within 60 s.
    bool becomes(const Health& wanted) const;
    Health last() const;
    /// Whether it ends within 60 s.
    bool ends() const;

    struct Call;

  private:
    std::unique_ptr<Call> call_;
};

}  // namespace test_support
