#include "tests/support/etcd_process.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "libfabricshm/os/fd.hpp"
#include "tests/support/skip.hpp"

namespace test_support {

namespace {

constexpr const char* kProgram = "/usr/bin/etcd";
constexpr std::chrono::seconds kStartWithin{30};

// Of the kernel's choice. Another program may take it before etcd does, which then ends and says
// so.
int free_port() {
    const fabricshm::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
        std::perror("free port");
        std::exit(1);
    }
    return ntohs(address.sin_port);
}

std::string url(int port) {
    return "http://127.0.0.1:" + std::to_string(port);
}

/// The answer to an HTTP request of etcd's gateway; "": none.
std::string ask(int port, const std::string& request) {
    const fabricshm::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval limit{1, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        return "";
    if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
    std::string answer;
    char bytes[4096];
    while (true) {
        const ssize_t got = ::recv(socket.get(), bytes, sizeof bytes, 0);
        if (got <= 0) return answer;
        answer.append(bytes, static_cast<std::size_t>(got));
    }
}

std::string status_of(int port) {
    return ask(
        port,
        "POST /v3/maintenance/status HTTP/1.0\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}");
}

std::string field(const std::string& json, const std::string& name) {
    const std::string begin = "\"" + name + "\":\"";
    const std::size_t at = json.find(begin);
    if (at == std::string::npos) return "";
    const std::size_t from = at + begin.size();
    return json.substr(from, json.find('"', from) - from);
}

}  // namespace

bool has_etcd() {
    if (::access(kProgram, X_OK) == 0) return true;
    skip("etcd is not installed (scripts/setup)");
    return false;
}

bool Certificates::make(const std::string& folder) {
    ca = folder + "/ca.pem";
    cert = folder + "/host.pem";
    key = folder + "/host.key";
    const std::string extensions = folder + "/extensions";
    std::ofstream(extensions) << "subjectAltName=IP:127.0.0.1,DNS:localhost\n"
                                 "extendedKeyUsage=serverAuth,clientAuth\n";
    const std::string make_key =
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 ";
    const std::string command =
        "( " + make_key + "-x509 -subj /CN=authority -keyout " + folder + "/ca.key -out " + ca +
        " && " + make_key + "-subj /CN=localhost -keyout " + key + " -out " + folder +
        "/request && openssl x509 -req -days 2 -in " + folder + "/request -CA " + ca + " -CAkey " +
        folder + "/ca.key -CAcreateserial -extfile " + extensions + " -out " + cert +
        " ) >/dev/null 2>&1";
    return std::system(command.c_str()) == 0;
}

EtcdProcesses::EtcdProcesses(int members) : members_(static_cast<std::size_t>(members)) {
    start_all();
}

EtcdProcesses::EtcdProcesses(const Certificates& certificates)
    : certificates_(certificates), members_(1) {
    start_all();
}

void EtcdProcesses::start_all() {
    for (Member& member : members_) {
        member.client_port = free_port();
        member.peer_port = free_port();
        std::string endpoint = url(member.client_port);
        if (!certificates_.ca.empty()) endpoint.insert(4, "s");
        endpoints_.push_back(endpoint);
    }
    const int count = static_cast<int>(members_.size());
    for (int i = 0; i < count; ++i) start(i);
    // With certificates its gateway is not for this file; callers try until it answers.
    for (int i = 0; i < count && certificates_.ca.empty(); ++i) await(i);
    began_ = true;
}

EtcdProcesses::~EtcdProcesses() {
    for (int i = 0; i < static_cast<int>(members_.size()); ++i) kill(i);
}

std::string EtcdProcesses::endpoint_list() const {
    std::string list;
    for (const std::string& endpoint : endpoints_) list += (list.empty() ? "" : ",") + endpoint;
    return list;
}

void EtcdProcesses::start(int index, bool wiped) {
    Member& member = members_[static_cast<std::size_t>(index)];
    const std::string name = "m" + std::to_string(index);
    const std::string folder = folder_.file(name.c_str());
    if (wiped) std::filesystem::remove_all(folder);
    std::string cluster;
    for (std::size_t i = 0; i < members_.size(); ++i) {
        cluster += (i == 0 ? "m" : ",m") + std::to_string(i) + "=" + url(members_[i].peer_port);
    }
    const std::string& endpoint = endpoints_[static_cast<std::size_t>(index)];
    std::vector<std::string> words = {kProgram,
                                      "--name",
                                      name,
                                      "--data-dir",
                                      folder,
                                      "--listen-client-urls",
                                      endpoint,
                                      "--advertise-client-urls",
                                      endpoint,
                                      "--listen-peer-urls",
                                      url(member.peer_port),
                                      "--initial-advertise-peer-urls",
                                      url(member.peer_port),
                                      "--initial-cluster",
                                      cluster,
                                      "--initial-cluster-state",
                                      began_ && !wiped ? "existing" : "new",
                                      "--heartbeat-interval",
                                      "20",
                                      "--election-timeout",
                                      "200"};
    if (!certificates_.ca.empty()) {
        for (const auto& [option, path] : {std::pair{"--trusted-ca-file", certificates_.ca},
                                           std::pair{"--cert-file", certificates_.cert},
                                           std::pair{"--key-file", certificates_.key}}) {
            words.emplace_back(option);
            words.push_back(path);
        }
        words.emplace_back("--client-cert-auth");
    }
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const std::string log = folder_.file((name + ".log").c_str());
    const pid_t parent = ::getpid();
    member.pid = ::fork();
    if (member.pid != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(out, 1);
    ::dup2(out, 2);
    ::execv(kProgram, arguments.data());
    ::_exit(127);
}

void EtcdProcesses::save(int index) const {
    const std::string folder = folder_.file(("m" + std::to_string(index)).c_str());
    std::filesystem::copy(folder, folder + ".saved", std::filesystem::copy_options::recursive);
}

void EtcdProcesses::restore(int index) const {
    const std::string folder = folder_.file(("m" + std::to_string(index)).c_str());
    std::filesystem::remove_all(folder);
    std::filesystem::rename(folder + ".saved", folder);
}

void EtcdProcesses::await(int index) const {
    const Member& member = members_[static_cast<std::size_t>(index)];
    const auto end = std::chrono::steady_clock::now() + kStartWithin;
    while (std::chrono::steady_clock::now() < end) {
        const std::string leader = field(status_of(member.client_port), "leader");
        if (!leader.empty() && leader != "0") return;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    std::ifstream log(folder_.file(("m" + std::to_string(index) + ".log").c_str()));
    std::fprintf(stderr, "etcd did not start:\n%s\n",
                 std::string(std::istreambuf_iterator<char>(log), {}).c_str());
    std::exit(1);
}

int EtcdProcesses::leader() const {
    for (std::size_t i = 0; i < members_.size(); ++i) {
        const std::string status = status_of(members_[i].client_port);
        const std::string leader = field(status, "leader");
        if (!leader.empty() && leader == field(status, "member_id")) return static_cast<int>(i);
    }
    return -1;
}

void EtcdProcesses::signal(int index, int number) const {
    ::kill(members_[static_cast<std::size_t>(index)].pid, number);
}

void EtcdProcesses::kill(int index) {
    Member& member = members_[static_cast<std::size_t>(index)];
    if (member.pid <= 0) return;
    ::kill(member.pid, SIGKILL);
    ::waitpid(member.pid, nullptr, 0);
    member.pid = -1;
}

}  // namespace test_support
