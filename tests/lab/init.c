/* The container's init: it reaps orphans and ends when it is told to.
 *
 * lxc-stop sends SIGPWR for a clean shutdown and `pct reboot` does a shutdown and a start. Every process gets
 * SIGTERM and up to two seconds; the kernel kills what is left when process 1 ends.
 */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int main(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGPWR);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (;;) {
        int got = 0;
        if (sigwait(&set, &got) != 0) continue;
        if (got != SIGCHLD) break;
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
    kill(-1, SIGTERM);
    for (int i = 0; i < 200; i++) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        if (kill(-1, 0) != 0) break; /* no process but this one */
        struct timespec pause = {0, 10 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    return 0;
}
