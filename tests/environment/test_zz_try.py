def test_x(start):
    notebook = start()
    for c in (
        "id",
        "echo x > /srv/ttgrp/new",
        "echo x >> /srv/ttgrp/rootfile",
        "echo x >> /srv/ttgrp/mine",
        "touch /srv/ttgrp/other/f",
        "mkdir /srv/ttgrp/d",
        "rm /srv/ttgrp/rootfile",
        "touch /srv/ttopen/f",
        "echo x >> /srv/ttopen/world",
        "cat /srv/ttopen/world",
        "touch /var/tmp/x",
        "ls -la /srv/ttgrp /srv",
        "rm -f /srv/ttopen/world; ls /srv/ttopen",
        "su root -c true </dev/null",
        "touch ~/o; chown 33 ~/o",
        "crontab -l",
        "newgrp",
    ):
        print("$", c, "\n", notebook.run("!" + c).out)
    print(notebook.command("status")["environment"])
