from streamd.cli import main

main()
