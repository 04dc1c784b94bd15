/* unix_diag.h: ask the kernel about a Unix socket by its inode number (sock_diag(7)). */
#ifndef TT_UNIX_DIAG_H
#define TT_UNIX_DIAG_H

#include "sys.h"

struct tt_unix_facts {
  uint32_t peer_ino; /* 0: none */
  uint32_t backlog;  /* of a listening socket */
  uint32_t waiting;  /* connections that it has not accepted; else bytes or messages */
  int shutdown;      /* 1: receiving, 2: sending */
};

/* *netlink: -1 at first; the socket that is used, for the caller to close. 0 or -errno. */
int tt_unix_ask(int *netlink, uint32_t ino, struct tt_unix_facts *facts);

/* The attributes of an answer of size bytes. Pure. 0, or -EBADMSG. */
int tt_unix_parse(const char *answer, size_t size, struct tt_unix_facts *facts);

#endif
