/* fds_options.c: options of sockets that were set, and filters of packets: socket(7), ip(7),
 * tcp(7), udp(7). */
#include "fds.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#define FILTER_STEP 8 /* bytes of struct sock_filter */
#define UDP_SEGMENT_ 103
#define UDP_GRO_ 104
#ifndef TCP_NOTSENT_LOWAT
#define TCP_NOTSENT_LOWAT 25
#endif

static const struct {
  int level, name, domain; /* domain 0: any */
  int is_long; /* a struct timeval, or a name of 15 bytes */
} options[] = {
    {SOL_SOCKET, SO_REUSEADDR, 0, 0},
    {SOL_SOCKET, SO_REUSEPORT, 0, 0},
    {SOL_SOCKET, SO_KEEPALIVE, 0, 0},
    {SOL_SOCKET, SO_BROADCAST, 0, 0},
    {SOL_SOCKET, SO_SNDBUF, 0, 0},
    {SOL_SOCKET, SO_RCVBUF, 0, 0},
    {SOL_SOCKET, SO_OOBINLINE, 0, 0},
    {SOL_SOCKET, SO_PRIORITY, 0, 0},
    {SOL_SOCKET, SO_RCVLOWAT, 0, 0},
    {SOL_SOCKET, SO_PASSCRED, AF_UNIX, 0},
    {SOL_SOCKET, SO_RCVTIMEO, 0, 1},
    {SOL_SOCKET, SO_SNDTIMEO, 0, 1},
    {SOL_SOCKET, SO_LINGER, 0, 1},
    {IPPROTO_TCP, TCP_NODELAY, AF_INET, 0},
    {IPPROTO_TCP, TCP_KEEPIDLE, AF_INET, 0},
    {IPPROTO_TCP, TCP_KEEPINTVL, AF_INET, 0},
    {IPPROTO_TCP, TCP_KEEPCNT, AF_INET, 0},
    {IPPROTO_TCP, TCP_DEFER_ACCEPT, AF_INET, 0},
    {IPPROTO_IP, IP_TOS, AF_INET, 0},
    {IPPROTO_IP, IP_TTL, AF_INET, 0},
    {IPPROTO_IP, IP_MULTICAST_TTL, AF_INET, 0},
    {IPPROTO_IP, IP_MULTICAST_LOOP, AF_INET, 0},
    {IPPROTO_IPV6, IPV6_V6ONLY, AF_INET6, 0},
    {SOL_SOCKET, SO_DONTROUTE, 0, 0},
    {SOL_SOCKET, SO_TIMESTAMP, 0, 0},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, AF_INET, 0},
    {IPPROTO_TCP, TCP_FASTOPEN, AF_INET, 0},
    {IPPROTO_IP, IP_PKTINFO, AF_INET, 0},
    {IPPROTO_IP, IP_RECVTTL, AF_INET, 0},
    {IPPROTO_IP, IP_RECVTOS, AF_INET, 0},
    {IPPROTO_IPV6, IPV6_UNICAST_HOPS, AF_INET6, 0},
    {IPPROTO_IPV6, IPV6_MULTICAST_HOPS, AF_INET6, 0},
    {IPPROTO_IPV6, IPV6_MULTICAST_LOOP, AF_INET6, 0},
    {IPPROTO_IPV6, IPV6_RECVPKTINFO, AF_INET6, 0},
    {IPPROTO_IPV6, IPV6_TCLASS, AF_INET6, 0},
    {SOL_SOCKET, SO_TIMESTAMPNS, 0, 0},
    {SOL_SOCKET, SO_RXQ_OVFL, 0, 0},
    {SOL_SOCKET, SO_BUSY_POLL, 0, 0},
    {SOL_SOCKET, SO_MARK, 0, 0},
    {SOL_SOCKET, SO_BINDTODEVICE, 0, 1},
    {IPPROTO_TCP, TCP_CORK, AF_INET, 0},
    {IPPROTO_TCP, TCP_SYNCNT, AF_INET, 0},
    {IPPROTO_TCP, TCP_LINGER2, AF_INET, 0},
    {IPPROTO_TCP, TCP_NOTSENT_LOWAT, AF_INET, 0},
    {IPPROTO_TCP, TCP_CONGESTION, AF_INET, 1},
    {IPPROTO_UDP, UDP_SEGMENT_, AF_INET, 0},
    {IPPROTO_UDP, UDP_GRO_, AF_INET, 0},
    {IPPROTO_IP, IP_MTU_DISCOVER, AF_INET, 0},
    {IPPROTO_IP, IP_RECVERR, AF_INET, 0},
    {IPPROTO_IP, IP_FREEBIND, AF_INET, 0},
    {IPPROTO_IP, IP_TRANSPARENT, AF_INET, 0},
    {IPPROTO_IP, IP_MINTTL, AF_INET, 0},
    {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, AF_INET, 0},
    {IPPROTO_IPV6, IPV6_MTU_DISCOVER, AF_INET6, 0},
    {IPPROTO_IPV6, IPV6_RECVERR, AF_INET6, 0},
};

static long get(int fd, int level, int name, void *to, uint32_t *size) {
  return SC(SYS_getsockopt, fd, level, name, to, size);
}

/* A filter of packets that was given as a program of the classic kind: SO_GET_FILTER tells its
 * length, then the program. */
static int describe_filter(struct tt_state *state, const struct tt_desc *desc) {
  struct tt_socket *s = desc->u.socket;
  uint32_t count = 0, size;
  long r = get(desc->fd, SOL_SOCKET, SO_GET_FILTER, 0, &count);
  if (r == -EACCES) tt_report_fd(state, "socket", desc->fd, "its filter (eBPF) is not set again");
  if (r || !count) return 0;
  s->filter = tt_alloc(&state->arena, count * FILTER_STEP);
  if (!s->filter) return -ENOMEM;
  size = count;
  if (get(desc->fd, SOL_SOCKET, SO_GET_FILTER, s->filter, &size) == 0) s->filter_steps = count;
  return 0;
}

int tt_options_describe(struct tt_state *state, const struct tt_desc *desc) {
  struct tt_socket *s = desc->u.socket;
  int fd = desc->fd;
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    int domain = options[i].domain, tcp = options[i].level == IPPROTO_TCP;
    int udp = options[i].level == IPPROTO_UDP;
    int inet = s->domain == AF_INET || s->domain == AF_INET6;
    if (tcp || udp ? !inet || s->type != (tcp ? SOCK_STREAM : SOCK_DGRAM)
                   : domain && domain != s->domain)
      continue;
    struct tt_option o = {0, options[i].level, options[i].name, 0, {0, 0}};
    uint32_t size = options[i].is_long ? sizeof o.value : sizeof(int);
    if (get(fd, o.level, o.name, o.value, &size)) continue;
    o.size = (int)size;
    struct tt_option *kept = tt_alloc(&state->arena, sizeof o);
    if (!kept) return -ENOMEM;
    o.next = s->options;
    *kept = o;
    s->options = kept;
  }
  return describe_filter(state, desc);
}

static void report_unset(struct tt_state *state, const struct tt_desc *desc, int level, int name,
                         long error) {
  struct tt_note note = {{0}, 0};
  tt_note(&note, "an option is not set again (level ");
  tt_note_number(&note, (uint64_t)level);
  tt_note(&note, ", name ");
  tt_note_number(&note, (uint64_t)name);
  tt_note(&note, "), ");
  tt_note_error(&note, (int)error);
  tt_report_fd(state, "socket", desc->fd, note.text);
}

void tt_options_set(struct tt_state *state, const struct tt_desc *desc, int fd) {
  const struct tt_socket *s = desc->u.socket;
  for (const struct tt_option *o = s->options; o; o = o->next) {
    int64_t value[2] = {o->value[0], o->value[1]}, now[2] = {0, 0};
    uint32_t size = (uint32_t)o->size;
    /* setting a buffer's size, even to what it is, would end its automatic growth */
    if (get(fd, o->level, o->name, now, &size) == 0 && !memcmp(now, value, sizeof now)) continue;
    if (o->level == SOL_SOCKET && (o->name == SO_SNDBUF || o->name == SO_RCVBUF)) {
      int half; /* the kernel doubles what it is given: socket(7) */
      memcpy(&half, value, sizeof half);
      half /= 2;
      memcpy(value, &half, sizeof half);
    }
    long r = SC(SYS_setsockopt, fd, o->level, o->name, value, o->size);
    if (r) report_unset(state, desc, o->level, o->name, r);
  }
  if (!s->filter_steps) return;
  struct {
    uint16_t count;
    const void *steps;
  } program = {(uint16_t)s->filter_steps, s->filter};
  long r = SC(SYS_setsockopt, fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
  if (r) report_unset(state, desc, SOL_SOCKET, SO_ATTACH_FILTER, r);
}
