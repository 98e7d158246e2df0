// etcd, as child processes on the loopback in folders of their own.

#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/support/temporary_directory.hpp"

namespace test_support {

/// Whether etcd is installed; otherwise marks the program as skipped.
bool has_etcd();

/// Certificates of an authority of their own, made by openssl: for servers at 127.0.0.1 and for
/// clients.
struct Certificates {
    /// Into `folder`; false: openssl is not there or failed.
    bool make(const std::string& folder);
    std::string ca, cert, key;  // paths
};

/// One member, or three, on ports that were free. They die with the test program.
class EtcdProcesses {
  public:
    /// Starts them and waits until each answers; one that does not ends the test program with its
    /// log.
    explicit EtcdProcesses(int members = 1);
    /// One member, whose clients need a certificate.
    explicit EtcdProcesses(const Certificates& certificates);
    ~EtcdProcesses();
    EtcdProcesses(const EtcdProcesses&) = delete;
    EtcdProcesses& operator=(const EtcdProcesses&) = delete;

    const std::vector<std::string>& endpoints() const noexcept { return endpoints_; }
    /// Separated by commas.
    std::string endpoint_list() const;

    /// The member that leads; -1: none does.
    int leader() const;
    void kill(int member);
    void signal(int member, int number) const;
    /// Starts it again; `wiped`: without its data.
    void start(int member, bool wiped = false);
    /// Of one that was killed: a copy of its data, and these data again.
    void save(int member) const;
    void restore(int member) const;
    /// Waits until it answers.
    void await(int member) const;

  private:
    struct Member {
        pid_t pid = -1;
        int client_port = 0;
        int peer_port = 0;
    };

    void start_all();

    TemporaryDirectory folder_;
    Certificates certificates_;
    std::vector<Member> members_;
    std::vector<std::string> endpoints_;
    bool began_ = false;
};

}  // namespace test_support
