#include "tests/support/s3_server.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

namespace test_support {

namespace {

// Written apart from url_encoded(), of which this is a test.
std::string encoded_key(const std::string& key) {
    std::string text;
    for (const unsigned char byte : key) {
        char escaped[8];
        std::snprintf(escaped, sizeof escaped, "%%%02x", byte);
        text += escaped;
    }
    return text;
}

[[noreturn]] void give_up(const char* reason, int code) {
    std::fprintf(stderr, "s3_server.py: %s\n", reason);
    std::exit(code);
}

}  // namespace

std::string s3_content(const std::string& key, int version, std::uint64_t bytes) {
    std::string text;
    const std::string end = key.size() > 40 ? key.substr(key.size() - 40) : key;
    for (std::uint64_t line = 0; text.size() < bytes; ++line) {
        char row[80];
        std::snprintf(row, sizeof row, "%08d %012llu %41s\n", version,
                      static_cast<unsigned long long>(line), end.c_str());
        text += row;
    }
    return text.substr(0, bytes);
}

S3Server::S3Server(const std::string& certificate, const std::string& key) {
    int to[2];
    int from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) give_up("no pipes", 1);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(1);
        ::dup2(to[0], 0);
        ::dup2(from[1], 1);
        // Without a certificate the words end before it.
        ::execl("/usr/bin/python3", "python3", "-B", S3_SERVER_PATH,
                certificate.empty() ? nullptr : certificate.c_str(), key.c_str(), nullptr);
        ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    to_ = ::fdopen(to[1], "w");
    from_ = ::fdopen(from[0], "r");
    char line[64] = "";
    if (std::fgets(line, sizeof line, from_) == nullptr) {
        int status = 0;
        ::waitpid(pid_, &status, 0);
        const bool is_missing = WIFEXITED(status) && WEXITSTATUS(status) == 77;
        if (!is_missing) give_up("it did not start", 1);
        // As main() does of a program that marks itself as skipped.
        const char* const strict = std::getenv("FABRIC_TESTS_FAIL_ON_SKIP");
        give_up("botocore is not installed (scripts/setup)",
                strict != nullptr && *strict == '1' ? 1 : 77);
    }
    port_ = std::atoi(line);
}

S3Server::~S3Server() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    std::fclose(to_);
    std::fclose(from_);
}

std::string S3Server::command(const std::string& line) {
    std::fprintf(to_, "%s\n", line.c_str());
    std::fflush(to_);
    char answer[256] = "";
    if (std::fgets(answer, sizeof answer, from_) == nullptr) give_up("it ended", 1);
    answer[std::strcspn(answer, "\n")] = '\0';
    return answer;
}

void S3Server::put(const std::string& key, int version, std::uint64_t bytes,
                   const std::string& more) {
    command("put " + encoded_key(key) + " " + std::to_string(version) + " " +
            std::to_string(bytes) + " " + more);
}

void S3Server::text(const std::string& key, const std::string& content) {
    std::string digits;
    for (const unsigned char byte : content) {
        char pair[4];
        std::snprintf(pair, sizeof pair, "%02x", byte);
        digits += pair;
    }
    command("text " + encoded_key(key) + " " + digits);
}

void S3Server::remove(const std::string& key) {
    command("remove " + encoded_key(key));
}

void S3Server::fault(const std::string& name, int count, const std::string& method) {
    command("fault " + name + " " + std::to_string(count) + " " + method);
}

S3Server::Stats S3Server::stats() {
    Stats stats;
    std::sscanf(command("stats").c_str(), "%u %u %u", &stats.requests, &stats.connections,
                &stats.parts);
    return stats;
}

S3Server::Object S3Server::object(const std::string& key) {
    char md5[64] = "";
    char write[64] = "";
    unsigned long long bytes = 0;
    std::sscanf(command("object " + encoded_key(key)).c_str(), "%llu %63s %63s", &bytes, md5,
                write);
    return {bytes, md5, write};
}

unsigned S3Server::uploads() {
    return static_cast<unsigned>(std::atoi(command("uploads").c_str()));
}

void S3Server::begin(const std::string& key) {
    command("begin " + encoded_key(key));
}

std::string S3Server::credentials() {
    return std::string("[default]\naws_access_key_id = AKIDTEST\naws_secret_access_key = ") +
           kSecret + "\naws_session_token = token+of/the=session\n";
}

}  // namespace test_support
